"""GPT-2 (Radford et al. 2019), as in GPT2LMHeadModel."""

from flaxformer.components import PRE, LanguageModel, LayerNorm, LearnedPositions, Tokens
from flaxformer.config import ModelConfig
from flaxformer.interop.huggingface.attributes import (
    Attribute,
    activation,
    choice,
    flag,
    number,
    rate,
    unused_attribute,
)
from flaxformer.interop.huggingface.family import Family, classifier

TENSORS = """
transformer.wte                  embedding/tokens                      table
transformer.wpe                  positions/table                       table
transformer.h.*.ln_1             blocks/*/attention_connection/pre     norm
transformer.h.*.attn.c_attn      blocks/*/attention/query+key+value    input_first
transformer.h.*.attn.c_proj      blocks/*/attention/out                input_first
transformer.h.*.ln_2             blocks/*/feed_forward_connection/pre  norm
transformer.h.*.mlp.c_fc         blocks/*/feed_forward/up              input_first
transformer.h.*.mlp.c_proj       blocks/*/feed_forward/down            input_first
transformer.ln_f                 final_norm                            norm
lm_head                          head                                  head
"""
FAMILY = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    heads={"GPT2ForSequenceClassification": classifier("last", bias=False)},
    classifier="score",
    base=ModelConfig(
        inputs=Tokens(std=0.02),
        norm=PRE,
        norm_kind=LayerNorm(),
        positions=LearnedPositions(max_length=1),
        head=LanguageModel(tied=True),
        mask_pattern="causal",
    ),
    attributes=(
        number("vocab_size", "vocabulary"),
        number("n_positions", "positions.max_length", default=1024),
        number("n_embd", "d_model"),
        number("n_layer", "layers"),
        number("n_head", "attention.heads"),
        number("n_inner", "feed_forward.d_ff", default=lambda attributes: 4 * attributes["n_embd"]),
        activation("activation_function", "feed_forward.activation", default="gelu_new"),
        number("layer_norm_epsilon", "norm_kind.epsilon", default=1e-5),
        choice(
            "scale_attn_weights",
            {True: {"attention.scale_exponent": 0.5}, False: {"attention.scale_exponent": 0.0}},
            True,
        ),
        flag("tie_word_embeddings", "head.tied", default=True),
        rate("resid_pdrop", "dropout", default=0.1),
        Attribute("embd_pdrop", lambda value: {}, lambda config: config.dropout or 0.0, 0.1),
        unused_attribute("attn_pdrop"),
    ),
    tensors=TENSORS,
    fixed={"scale_attn_by_inverse_layer_idx": False},
    ignored={
        "the order of equal computations": "reorder_and_upcast_attn",
        "read by no model": "n_ctx n_special predict_special_tokens",
        "another task's head": (
            "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout"
        ),
    },
    prefix="transformer.",
    outer=("lm_head.", "score."),
    aliases={"lm_head.weight": "transformer.wte.weight"},
    dropped=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),
)
