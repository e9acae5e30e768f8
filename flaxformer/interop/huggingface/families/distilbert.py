"""DistilBERT (Sanh et al. 2019), as in DistilBertForMaskedLM."""

from flaxformer.components import Tokens
from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.attributes import activation, flag, number, rate, unused_attribute
from flaxformer.interop.huggingface.families import bert
from flaxformer.interop.huggingface.family import Family, classifier, final_vectors

TENSORS = """
distilbert.embeddings.word_embeddings             embedding/tokens                                table
distilbert.embeddings.position_embeddings         positions/table                                 table
distilbert.embeddings.LayerNorm                   embedding_norm                                  norm
distilbert.transformer.layer.*.attention.q_lin    blocks/*/attention/query
distilbert.transformer.layer.*.attention.k_lin    blocks/*/attention/key
distilbert.transformer.layer.*.attention.v_lin    blocks/*/attention/value
distilbert.transformer.layer.*.attention.out_lin  blocks/*/attention/out
distilbert.transformer.layer.*.sa_layer_norm      blocks/*/attention_connection/post_residual     norm
distilbert.transformer.layer.*.ffn.lin1           blocks/*/feed_forward/up
distilbert.transformer.layer.*.ffn.lin2           blocks/*/feed_forward/down
distilbert.transformer.layer.*.output_layer_norm  blocks/*/feed_forward_connection/post_residual  norm
vocab_transform                                   head/transform                                  head
vocab_layer_norm                                  head/transform/norm                             norm
vocab_projector                                   head                                            head
"""
FAMILY = Family(
    name="distilbert",
    architectures=("DistilBertForMaskedLM",),
    heads={"DistilBertModel": final_vectors, "DistilBertForTokenClassification": classifier("none", bias=True)},
    classifier="classifier",
    base=replace_at(bert.BASE, {"inputs": Tokens(std=0.02), "norm_kind.epsilon": 1e-12}),
    attributes=(
        number("vocab_size", "vocabulary"),
        number("dim", "d_model"),
        number("n_layers", "layers"),
        number("n_heads", "attention.heads"),
        number("hidden_dim", "feed_forward.d_ff"),
        activation("activation", "feed_forward.activation", "head.transform", default="gelu"),
        number("max_position_embeddings", "positions.max_length", default=512),
        rate("dropout", "dropout", default=0.1),
        unused_attribute("attention_dropout"),
        flag("tie_word_embeddings", "head.tied", default=True),
    ),
    tensors=TENSORS,
    transform="feed_forward.activation",
    ignored={
        "another task's head": "qa_dropout seq_classif_dropout",
        "initial values of a table that the file replaces": "sinusoidal_pos_embds",
        "tie_word_embeddings of another name, and read by no model": "tie_weights_",
    },
    prefix="distilbert.",
    outer=("vocab_", "classifier."),
    aliases={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    dropped=(r"distilbert\.embeddings\.position_ids",),
)
