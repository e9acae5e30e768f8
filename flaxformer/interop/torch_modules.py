"""Conversion of weights of torch.nn's Transformer modules, from and to their state dicts, without torch.

>>> config = config_of("TransformerEncoder", d_model=512, nhead=8, num_layers=6, norm_first=True, norm=True)
>>> params = from_torch("TransformerEncoder", module.state_dict(), config)
>>> y = apply(params, config, x, valid=~padding)  # module(x, src_key_padding_mask=padding)

Kinds are classes of torch.nn, with these counterparts:

    MultiheadAttention        `Attention.Weights`
    TransformerEncoderLayer   `BlockParams`
    TransformerDecoderLayer   `BlockParams` that reads a memory
    TransformerEncoder        `Transformer` that reads vectors (`Embeddings`) and has no head
    TransformerDecoder        the same, with a memory: apply(params, config, tgt, memory=memory)
    Transformer               the same, with an encoder: apply(params, config, tgt, source=src)

The caller of a torch module passes its causal mask, so the config's mask_pattern is "bidirectional"; use
`config.replace(mask_pattern="causal")` for a causal model. Embedding and head are not part of the module; add them with
`config.replace(inputs=Tokens(), head=LanguageModel(), …)` and
`params.replace(embedding=Tokens.Weights(tokens=…), head=LanguageModel.Weights(matrix=…))`.
"""

from collections.abc import Callable, Mapping

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters
from flaxformer.core.weight_specs import declare
from flaxformer.interop.tensors import (
    MATRIX,
    VECTOR,
    TensorRow,
    declared_rows,
    from_tensors,
    layers,
    linear,
    norm,
    to_tensors,
    within,
)
from flaxformer.interop.torch_arguments import arguments_of, config_of
from flaxformer.interop.widths import encoder_of
from flaxformer.model import specs
from flaxformer.model.blocks import BlockParams
from flaxformer.model.weights import Transformer, with_layout

__all__ = ["arguments_of", "config_of", "from_torch", "to_torch"]


def _around(name: str, path: str) -> tuple[TensorRow, ...]:
    """Return the rows of a branch's norm, as pre-norm and as post-norm; the config declares one of them."""
    return norm(name, f"{path}_connection/pre") + norm(name, f"{path}_connection/post_residual")


# Rows whose weights the config does not declare, such as absent biases, are dropped by `declared_rows`.
SHARED = (
    TensorRow("in_proj_bias", ("query_bias", "key_bias", "value_bias"), VECTOR),
    *linear("out_proj", "out"),
)
PACKED = (TensorRow("in_proj_weight", ("query", "key", "value"), MATRIX), *SHARED)
SEPARATE = (
    TensorRow("q_proj_weight", ("query",), MATRIX),
    TensorRow("k_proj_weight", ("key",), MATRIX),
    TensorRow("v_proj_weight", ("value",), MATRIX),
    *SHARED,
)
FEED_FORWARD = linear("linear1", "feed_forward/up") + linear("linear2", "feed_forward/down")
ENCODER_LAYER = (
    *within("self_attn.", "attention/", PACKED),
    *FEED_FORWARD,
    *_around("norm1", "attention"),
    *_around("norm2", "feed_forward"),
)
DECODER_LAYER = (
    *within("self_attn.", "attention/", PACKED),
    *within("multihead_attn.", "cross_attention/", PACKED),
    *FEED_FORWARD,
    *_around("norm1", "attention"),
    *_around("norm2", "cross_attention"),
    *_around("norm3", "feed_forward"),
)


def _stack(layer: tuple[TensorRow, ...], config: ModelConfig) -> tuple[TensorRow, ...]:
    return layers("layers", "blocks", layer, config.layers) + norm("norm", "final_norm")


def _encoder_and_decoder(config: ModelConfig) -> tuple[TensorRow, ...]:
    encoder = _stack(ENCODER_LAYER, encoder_of(config))
    return within("encoder.", "encoder/", encoder) + within("decoder.", "", _stack(DECODER_LAYER, config))


ROWS: dict[str, Callable[[ModelConfig], tuple[TensorRow, ...]]] = {
    "MultiheadAttention": lambda config: PACKED if config.sizes["d_memory"] in (0, config.d_model) else SEPARATE,
    "TransformerEncoderLayer": lambda config: ENCODER_LAYER,
    "TransformerDecoderLayer": lambda config: DECODER_LAYER,
    "TransformerEncoder": lambda config: _stack(ENCODER_LAYER, config),
    "TransformerDecoder": lambda config: _stack(DECODER_LAYER, config),
    "Transformer": _encoder_and_decoder,
}


def _block(config: ModelConfig) -> BlockParams:
    return declare(BlockParams, config)


def _attention(config: ModelConfig) -> Parameters:
    block = _block(config)
    weights = block.cross_attention if config.reads_memory else block.attention
    assert weights is not None
    return weights


SPECS: dict[str, Callable[[ModelConfig], Parameters]] = {
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _block,
    "TransformerDecoderLayer": _block,
    "TransformerEncoder": specs,
    "TransformerDecoder": specs,
    "Transformer": specs,
}
"""Functions that return the declarations of a module's weights."""


def from_torch(kind: str, state: Mapping[str, ArrayLike], config: ModelConfig) -> PyTree:
    """Convert the state dict of a torch.nn module to weights in float32, in the tree of the table above.

    Args:
      kind: a class of torch.nn, such as "TransformerEncoderLayer".
      state: the state dict, with NumPy arrays or tensors of torch, which are copied.
      config: a config that `config_of` returned.

    Raises:
      UserError: the config is not that of such a module; or a tensor is missing, unexpected, of another shape or not of
        floating-point numbers, and the message has its name, the shape found and the shape expected.
    """
    return from_tensors(*_rows_and_specs(kind, config), state, f"state of torch.nn.{kind}")


def to_torch(kind: str, params: Parameters, config: ModelConfig) -> dict[str, np.ndarray]:
    """Convert weights to the state dict, with NumPy arrays, of a torch.nn module; the inverse of `from_torch`.

    `arguments_of(kind, config)` returns the arguments of the module's constructor; pass each array to
    `load_state_dict` through `torch.from_numpy`.

    Raises:
      UserError: the config is not that of such a module, or the weights are not those of the config; the message has
        names, the shapes found and the shapes expected.
    """
    unrolled = with_layout(params, "unrolled") if isinstance(params, Transformer) else params
    return to_tensors(*_rows_and_specs(kind, config), unrolled, f"weights for torch.nn.{kind}")


def _rows_and_specs(kind: str, config: ModelConfig) -> tuple[list[TensorRow], Parameters]:
    """Return the tensors of a module, and the declarations of the weights, each of which is in one tensor."""
    arguments_of(kind, config)  # raises an error for configs that torch's module cannot have
    declarations = SPECS[kind](config)
    return declared_rows(ROWS[kind](config), declarations), declarations
