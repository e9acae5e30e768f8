"""RoBERTa (Liu et al. 2019), as in RobertaForMaskedLM: BERT with positions after that of padding."""

from flaxformer.interop.huggingface.attributes import Attribute, activation
from flaxformer.interop.huggingface.families import bert
from flaxformer.interop.huggingface.family import Family, classifier, final_vectors
from flaxformer.interop.huggingface.tables import shifted, within

OFFSET = 2
"""Number of unused rows before that of position 0, since padding, token 1, has its own id as position."""
HEAD = """
roberta.embeddings.position_embeddings    positions/table      positions
lm_head.dense                             head/transform       head
lm_head.layer_norm                        head/transform/norm  norm
lm_head.bias                              head/bias            tensor
"""
FAMILY = Family(
    name="roberta",
    architectures=("RobertaForMaskedLM",),
    heads={"RobertaModel": final_vectors, "RobertaForTokenClassification": classifier("none", bias=True)},
    classifier="classifier",
    base=bert.BASE,
    attributes=(
        *bert.ATTRIBUTES,
        activation("hidden_act", "feed_forward.activation", default="gelu"),
        Attribute(
            "max_position_embeddings",
            lambda value: {"positions.max_length": value - OFFSET},
            lambda config: (config.positions.max_length or 0) + OFFSET,
            512,
        ),
    ),
    tensors=within("roberta.", "", bert.BODY) + HEAD,
    kinds={"positions": ((".weight", "", shifted(OFFSET)),)},
    fixed={"position_embedding_type": "absolute", "pad_token_id": 1, "tie_word_embeddings": True},
    prefix="roberta.",
    outer=("lm_head.", "classifier."),
    renamed=bert.FAMILY.renamed,
    aliases={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    dropped=(r"roberta\.pooler\.dense\.(weight|bias)", r"roberta\.embeddings\.(position_ids|token_type_ids)"),
    defaults={"pad_token_id": 1},
)
