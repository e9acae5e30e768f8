"""BART (Lewis et al. 2020), as in BartForConditionalGeneration."""

from collections.abc import Mapping

from flaxformer.components import LanguageModel, LayerNorm, LearnedPositions, NormPlacement, Tokens
from flaxformer.config import ModelConfig
from flaxformer.interop.huggingface.attributes import (
    activation,
    choice,
    number,
    rate,
    unused_attribute,
)
from flaxformer.interop.huggingface.family import Family
from flaxformer.interop.huggingface.tables import Kind, shifted, within
from flaxformer.interop.tensors import TensorLayout

OFFSET = 2
"""Number of unused rows before that of position 0."""
LOGITS_BIAS = TensorLayout(
    shape=lambda spec: (1, *spec.shape),
    load=lambda weight, spec: weight[0],
    save=lambda weight, spec: weight[None],
)
KINDS: Mapping[str, Kind] = {
    "positions": ((".weight", "", shifted(OFFSET)),),
    "logits_bias": (("", "", LOGITS_BIAS),),
}
CROSS = """
layers.*.encoder_attn.q_proj          blocks/*/cross_attention/query
layers.*.encoder_attn.k_proj          blocks/*/cross_attention/key
layers.*.encoder_attn.v_proj          blocks/*/cross_attention/value
layers.*.encoder_attn.out_proj        blocks/*/cross_attention/out
layers.*.encoder_attn_layer_norm      blocks/*/cross_attention_connection/post_residual  norm
"""
LAYER = """
layers.*.self_attn.q_proj             blocks/*/attention/query
layers.*.self_attn.k_proj             blocks/*/attention/key
layers.*.self_attn.v_proj             blocks/*/attention/value
layers.*.self_attn.out_proj           blocks/*/attention/out
layers.*.self_attn_layer_norm         blocks/*/attention_connection/post_residual        norm
layers.*.fc1                          blocks/*/feed_forward/up
layers.*.fc2                          blocks/*/feed_forward/down
layers.*.final_layer_norm             blocks/*/feed_forward_connection/post_residual     norm
"""
EMBEDDING = """
embed_positions                       positions/table                                    positions
layernorm_embedding                   embedding_norm                                     norm
"""
ENDS = """
model.shared                          embedding/tokens                                   table
final_logits_bias                     head/bias                                          logits_bias
"""
TENSORS = within("model.encoder.", "encoder/", EMBEDDING + LAYER) + within(
    "model.decoder.", "", EMBEDDING + LAYER + CROSS
)


def scales(exponent: float | None) -> dict[str, float | None]:
    """Return the fields of the factor of the embeddings."""
    return dict.fromkeys(("inputs.scale_exponent", "encoder.inputs.scale_exponent"), exponent)


ATTRIBUTES = (
    number("d_model", "d_model", "encoder.d_model"),
    number("encoder_layers", "encoder.layers"),
    number("decoder_layers", "layers"),
    number("encoder_attention_heads", "encoder.attention.heads"),
    number("decoder_attention_heads", "attention.heads"),
    number("encoder_ffn_dim", "encoder.feed_forward.d_ff"),
    number("decoder_ffn_dim", "feed_forward.d_ff"),
    activation("activation_function", "feed_forward.activation", "encoder.feed_forward.activation", default="gelu"),
    choice("scale_embedding", {False: scales(None), True: scales(0.5)}, False),
    rate("dropout", "dropout", "encoder.dropout", default=0.1),
    unused_attribute("attention_dropout"),
    unused_attribute("activation_dropout"),
    unused_attribute("encoder_layerdrop"),
    unused_attribute("decoder_layerdrop"),
)
"""Attributes that BART and Marian share."""
FIXED = {
    "is_encoder_decoder": True,
    "normalize_before": False,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "extra_pos_embeddings": OFFSET,
}
"""Attributes of BART and Marian of which this package supports one value."""
BASE = ModelConfig(
    inputs=Tokens(std=0.02),
    norm=NormPlacement(post_residual=True, embedding=True),
    norm_kind=LayerNorm(epsilon=1e-5),
    positions=LearnedPositions(max_length=1),
    head=LanguageModel(tied=True, bias=True),
    mask_pattern="causal",
)
FAMILY = Family(
    name="bart",
    architectures=("BartForConditionalGeneration", "BartModel"),
    base=BASE.with_encoder(inputs=Tokens(shared=True)),
    attributes=(
        *ATTRIBUTES,
        number("vocab_size", "vocabulary", "encoder.vocabulary"),
        number("max_position_embeddings", "positions.max_length", "encoder.positions.max_length", default=1024),
    ),
    tensors=TENSORS + ENDS,
    kinds=KINDS,
    fixed={
        **FIXED,
        "tie_word_embeddings": True,
        "normalize_embedding": True,
        "static_position_embeddings": False,
    },
    ignored={"equal to encoder_layers": "num_hidden_layers"},
    prefix="model.",
    outer=("lm_head.", "final_logits_bias"),
    aliases=dict.fromkeys(
        ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
        "model.shared.weight",
    ),
    dropped=(r"model\.(encoder|decoder)\.version",),
    zeros=("final_logits_bias",),
)
