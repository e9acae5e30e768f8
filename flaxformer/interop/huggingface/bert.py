"""BERT (Devlin et al. 2019), as in BertForMaskedLM."""

from flaxformer.components import LanguageModel, LayerNorm, LearnedPositions, NormPlacement, Tokens
from flaxformer.config import ModelConfig
from flaxformer.interop.huggingface.attributes import activation, choice, number, rate, unused_attribute
from flaxformer.interop.huggingface.family import Family, classifier, final_vectors
from flaxformer.interop.tensors import MATRIX, TABLE, VECTOR, TensorRow, layers, linear, norm

LAYER = (
    *linear("attention.self.query", "attention/query"),
    *linear("attention.self.key", "attention/key"),
    *linear("attention.self.value", "attention/value"),
    *linear("attention.output.dense", "attention/out"),
    *norm("attention.output.LayerNorm", "attention_connection/post_residual"),
    *linear("intermediate.dense", "feed_forward/up"),
    *linear("output.dense", "feed_forward/down"),
    *norm("output.LayerNorm", "feed_forward_connection/post_residual"),
)


def _rows(config: ModelConfig) -> tuple[TensorRow, ...]:
    return (
        TensorRow("bert.embeddings.word_embeddings.weight", ("embedding/tokens",), TABLE),
        TensorRow("bert.embeddings.position_embeddings.weight", ("positions/table",), TABLE),
        TensorRow("bert.embeddings.token_type_embeddings.weight", ("embedding/types",), TABLE),
        *norm("bert.embeddings.LayerNorm", "embedding_norm"),
        *layers("bert.encoder.layer", "blocks", LAYER, config.layers),
        TensorRow("cls.predictions.transform.dense.weight", ("head/transform/matrix",), MATRIX),
        TensorRow("cls.predictions.transform.dense.bias", ("head/transform/bias",), VECTOR),
        *norm("cls.predictions.transform.LayerNorm", "head/transform/norm"),
        TensorRow("cls.predictions.decoder.weight", ("head/matrix",), MATRIX),
        TensorRow("cls.predictions.bias", ("head/bias",), VECTOR),
    )


BERT = Family(
    name="bert",
    architectures=("BertForMaskedLM", "BertForPreTraining"),
    heads={"BertModel": final_vectors, "BertForTokenClassification": classifier("none", bias=True)},
    classifier="classifier",
    base=ModelConfig(
        inputs=Tokens(token_types=1, std=0.02),
        norm=NormPlacement(post_residual=True, embedding=True),
        norm_kind=LayerNorm(),
        positions=LearnedPositions(max_length=1),
        head=LanguageModel(tied=True, bias=True, transform="gelu"),
        mask_pattern="bidirectional",
    ),
    attributes=(
        number("vocab_size", "vocabulary"),
        number("hidden_size", "d_model"),
        number("num_hidden_layers", "layers"),
        number("num_attention_heads", "attention.heads"),
        number("intermediate_size", "feed_forward.d_ff"),
        activation("hidden_act", "feed_forward.activation", "head.transform", default="gelu"),
        number("max_position_embeddings", "positions.max_length", default=512),
        number("type_vocab_size", "inputs.token_types", default=2),
        number("layer_norm_eps", "norm_kind.epsilon", default=1e-12),
        rate("hidden_dropout_prob", "dropout", default=0.1),
        unused_attribute("attention_probs_dropout_prob"),
        choice("tie_word_embeddings", {True: {"head.tied": True}, False: {"head.tied": False}}, True),
    ),
    rows=_rows,
    fixed={"position_embedding_type": "absolute"},
    ignored={
        "of the pooler, which the masked language model does not read": (
            "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
            "pooler_type"
        ),
    },
    prefix="bert.",
    outer=("cls.", "classifier."),
    renamed=((r"\.gamma$", ".weight"), (r"\.beta$", ".bias")),
    aliases={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    dropped=(
        r"bert\.pooler\.dense\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
        r"bert\.embeddings\.position_ids",
    ),
)
