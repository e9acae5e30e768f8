"""GPT-2 (Radford et al. 2019), as in GPT2LMHeadModel."""

from flaxformer.components import PRE, LanguageModel, LayerNorm, LearnedPositions, Tokens
from flaxformer.config import ModelConfig
from flaxformer.interop.huggingface.attributes import Attribute, activation, choice, number, rate, unused_attribute
from flaxformer.interop.huggingface.family import Family, classifier
from flaxformer.interop.tensors import INPUT_FIRST, MATRIX, TABLE, VECTOR, TensorRow, layers, linear, norm

LAYER = (
    *norm("ln_1", "attention_connection/pre"),
    TensorRow("attn.c_attn.weight", ("attention/query", "attention/key", "attention/value"), INPUT_FIRST),
    TensorRow("attn.c_attn.bias", ("attention/query_bias", "attention/key_bias", "attention/value_bias"), VECTOR),
    *linear("attn.c_proj", "attention/out", INPUT_FIRST),
    *norm("ln_2", "feed_forward_connection/pre"),
    *linear("mlp.c_fc", "feed_forward/up", INPUT_FIRST),
    *linear("mlp.c_proj", "feed_forward/down", INPUT_FIRST),
)


def _rows(config: ModelConfig) -> tuple[TensorRow, ...]:
    return (
        TensorRow("transformer.wte.weight", ("embedding/tokens",), TABLE),
        TensorRow("transformer.wpe.weight", ("positions/table",), TABLE),
        *layers("transformer.h", "blocks", LAYER, config.layers),
        *norm("transformer.ln_f", "final_norm"),
        TensorRow("lm_head.weight", ("head/matrix",), MATRIX),
    )


GPT2 = Family(
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
        choice("tie_word_embeddings", {True: {"head.tied": True}, False: {"head.tied": False}}, True),
        rate("resid_pdrop", "dropout", default=0.1),
        Attribute("embd_pdrop", lambda value: {}, lambda config: config.dropout or 0.0, 0.1),
        unused_attribute("attn_pdrop"),
    ),
    rows=_rows,
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
