"""BERT (Devlin et al. 2019), as in BertForMaskedLM."""

from flaxformer.components import LanguageModel, LayerNorm, LearnedPositions, NormPlacement, Tokens
from flaxformer.config import ModelConfig
from flaxformer.interop.huggingface.attributes import activation, flag, number, rate, unused_attribute
from flaxformer.interop.huggingface.family import Family, classifier, final_vectors
from flaxformer.interop.huggingface.tables import within

BODY = """
embeddings.word_embeddings             embedding/tokens                                table
embeddings.token_type_embeddings       embedding/types                                 table
embeddings.LayerNorm                   embedding_norm                                  norm
encoder.layer.*.attention.self.query   blocks/*/attention/query
encoder.layer.*.attention.self.key     blocks/*/attention/key
encoder.layer.*.attention.self.value   blocks/*/attention/value
encoder.layer.*.attention.output.dense blocks/*/attention/out
encoder.layer.*.attention.output.LayerNorm blocks/*/attention_connection/post_residual norm
encoder.layer.*.intermediate.dense     blocks/*/feed_forward/up
encoder.layer.*.output.dense           blocks/*/feed_forward/down
encoder.layer.*.output.LayerNorm       blocks/*/feed_forward_connection/post_residual  norm
"""
HEAD = """
bert.embeddings.position_embeddings    positions/table      table
cls.predictions.transform.dense        head/transform       head
cls.predictions.transform.LayerNorm    head/transform/norm  norm
"""
TIED = "cls.predictions.bias    head/bias    tensor"
UNTIED = "cls.predictions.decoder    head    head"
BASE = ModelConfig(
    inputs=Tokens(token_types=1, std=0.02),
    norm=NormPlacement(post_residual=True, embedding=True),
    norm_kind=LayerNorm(),
    positions=LearnedPositions(max_length=1),
    head=LanguageModel(tied=True, bias=True, transform="gelu"),
    mask_pattern="bidirectional",
)
ATTRIBUTES = (
    number("vocab_size", "vocabulary"),
    number("hidden_size", "d_model"),
    number("num_hidden_layers", "layers"),
    number("num_attention_heads", "attention.heads"),
    number("intermediate_size", "feed_forward.d_ff"),
    number("type_vocab_size", "inputs.token_types", default=2),
    number("layer_norm_eps", "norm_kind.epsilon", default=1e-12),
    rate("hidden_dropout_prob", "dropout", default=0.1),
    unused_attribute("attention_probs_dropout_prob"),
    flag("tie_word_embeddings", "head.tied", default=True),
)
FAMILY = Family(
    name="bert",
    architectures=("BertForMaskedLM", "BertForPreTraining"),
    heads={"BertModel": final_vectors, "BertForTokenClassification": classifier("none", bias=True)},
    classifier="classifier",
    base=BASE,
    attributes=(
        *ATTRIBUTES,
        activation("hidden_act", "feed_forward.activation", "head.transform", default="gelu"),
        number("max_position_embeddings", "positions.max_length", default=512),
    ),
    tensors=lambda config: within("bert.", "", BODY) + HEAD + (TIED if config.head.tied else UNTIED),
    fixed={"position_embedding_type": "absolute"},
    ignored={
        "of the pooler, which the masked language model does not read": (
            "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
            "pooler_type"
        ),
    },
    transform="feed_forward.activation",
    prefix="bert.",
    outer=("cls.", "classifier."),
    renamed=((r"\.gamma$", ".weight"), (r"\.beta$", ".bias")),
    aliases={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
        "cls.predictions.bias": "cls.predictions.decoder.bias",  # of a head that is not tied
    },
    dropped=(
        r"bert\.pooler\.dense\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
        r"cls\.predictions\.bias",  # which a head that is not tied does not read, but for the alias
        r"bert\.embeddings\.position_ids",
    ),
)
