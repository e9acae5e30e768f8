"""BART (Lewis et al. 2020), as in BartForConditionalGeneration."""

import numpy as np

from flaxformer.components import LanguageModel, LayerNorm, LearnedPositions, NormPlacement, Tokens
from flaxformer.config import ModelConfig
from flaxformer.interop.huggingface.attributes import activation, choice, number, rate, unused_attribute
from flaxformer.interop.huggingface.family import Family
from flaxformer.interop.tensors import TABLE, TensorLayout, TensorRow, layers, linear, norm, within
from flaxformer.interop.widths import encoder_of

OFFSET = 2
"""Number of unused rows before that of position 0; they are dropped, and written as 0."""
POSITIONS = TensorLayout(
    shape=lambda spec: (spec.shape[0] + OFFSET, spec.shape[1]),
    load=lambda weight, spec: weight[OFFSET:],
    save=lambda weight, spec: np.pad(weight, ((OFFSET, 0), (0, 0))),
)
LOGITS_BIAS = TensorLayout(
    shape=lambda spec: (1, *spec.shape),
    load=lambda weight, spec: weight[0],
    save=lambda weight, spec: weight[None],
)


def _attention(theirs: str, ours: str) -> tuple[TensorRow, ...]:
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
    maps = [row for name, path in names.items() for row in linear(f"{theirs}.{name}", f"{ours}/{path}")]
    return (*maps, *norm(f"{theirs}_layer_norm", f"{ours}_connection/post_residual"))


LAYER = (
    *_attention("self_attn", "attention"),
    *_attention("encoder_attn", "cross_attention"),
    *linear("fc1", "feed_forward/up"),
    *linear("fc2", "feed_forward/down"),
    *norm("final_layer_norm", "feed_forward_connection/post_residual"),
)


def _stack(config: ModelConfig) -> tuple[TensorRow, ...]:
    return (
        TensorRow("embed_positions.weight", ("positions/table",), POSITIONS),
        *norm("layernorm_embedding", "embedding_norm"),
        *layers("layers", "blocks", LAYER, config.layers),
    )


def _rows(config: ModelConfig) -> tuple[TensorRow, ...]:
    return (
        TensorRow("model.shared.weight", ("embedding/tokens",), TABLE),
        *within("model.encoder.", "encoder/", _stack(encoder_of(config))),
        *within("model.decoder.", "", _stack(config)),
        TensorRow("final_logits_bias", ("head/bias",), LOGITS_BIAS),
    )


def _scale(exponent: float | None) -> dict[str, float | None]:
    return dict.fromkeys(("inputs.scale_exponent", "encoder.inputs.scale_exponent"), exponent)


BASE = ModelConfig(
    inputs=Tokens(std=0.02),
    norm=NormPlacement(post_residual=True, embedding=True),
    norm_kind=LayerNorm(epsilon=1e-5),
    positions=LearnedPositions(max_length=1),
    head=LanguageModel(tied=True, bias=True),
    mask_pattern="causal",
)
BART = Family(
    name="bart",
    architectures=("BartForConditionalGeneration", "BartModel"),
    base=BASE.with_encoder(inputs=Tokens(shared=True)),
    attributes=(
        number("vocab_size", "vocabulary", "encoder.vocabulary"),
        number("d_model", "d_model", "encoder.d_model"),
        number("encoder_layers", "encoder.layers"),
        number("decoder_layers", "layers"),
        number("encoder_attention_heads", "encoder.attention.heads"),
        number("decoder_attention_heads", "attention.heads"),
        number("encoder_ffn_dim", "encoder.feed_forward.d_ff"),
        number("decoder_ffn_dim", "feed_forward.d_ff"),
        activation("activation_function", "feed_forward.activation", "encoder.feed_forward.activation", default="gelu"),
        number("max_position_embeddings", "positions.max_length", "encoder.positions.max_length", default=1024),
        choice("scale_embedding", {False: _scale(None), True: _scale(0.5)}, False),
        rate("dropout", "dropout", "encoder.dropout", default=0.1),
        unused_attribute("attention_dropout"),
        unused_attribute("activation_dropout"),
        unused_attribute("encoder_layerdrop"),
        unused_attribute("decoder_layerdrop"),
    ),
    rows=_rows,
    fixed={
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "add_bias_logits": False,
        "static_position_embeddings": False,
        "extra_pos_embeddings": OFFSET,
    },
    ignored={"equal to encoder_layers": "num_hidden_layers"},
    prefix="model.",
    outer=("lm_head.", "final_logits_bias"),
    aliases={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    dropped=(r"model\.(encoder|decoder)\.version",),
    zeros=("final_logits_bias",),
)
