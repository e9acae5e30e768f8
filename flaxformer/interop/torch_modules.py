"""Weights of torch.nn's Transformer modules, from and to their state dicts, without torch.

>>> config = config_of("TransformerEncoder", d_model=512, nhead=8, num_layers=6, norm_first=True, norm=True)
>>> params = from_torch("TransformerEncoder", module.state_dict(), config)
>>> y = apply(params, config, x, valid=~padding)  # module(x, src_key_padding_mask=padding)

The kinds are classes of torch.nn, and what becomes of each:

    MultiheadAttention        `Attention.Weights`
    TransformerEncoderLayer   `BlockParams`
    TransformerDecoderLayer   `BlockParams` that reads a memory
    TransformerEncoder        `Transformer` that reads vectors (`Embeddings`) and has no head
    TransformerDecoder        the same, with a memory: apply(params, config, tgt, memory=memory)
    Transformer               the same, with an encoder: apply(params, config, tgt, source=src)

A torch module has its causal mask from its caller, so the config's mask_pattern is "bidirectional";
`config.replace(mask_pattern="causal")` has it for good. An embedding and a head stand outside the module: with
`config.replace(inputs=Tokens(), head=LanguageModel(), …)` go
`params.replace(embedding=Tokens.Weights(tokens=…), head=LanguageModel.Weights(matrix=…))`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from flaxformer.config import ModelConfig
from flaxformer.interop.tensors import (
    MATRIX,
    VECTOR,
    TensorRow,
    declared,
    from_tensors,
    layers,
    linear,
    norm,
    to_tensors,
    within,
)
from flaxformer.interop.torch_arguments import arguments_of, config_of
from flaxformer.model import specs
from flaxformer.model.blocks import BlockParams
from flaxformer.model.transformer import Transformer, with_layout
from flaxformer.params import declare

__all__ = ["arguments_of", "config_of", "from_torch", "to_torch"]


def _around(name: str, path: str) -> tuple[TensorRow, ...]:
    """The norm of a branch, in the slot of pre-norm or in that of post-norm."""
    return norm(name, f"{path}_connection/pre") + norm(name, f"{path}_connection/post_residual")


# A row counts where the config declares its weights: the other slot, or a bias that is left out, has none.
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
    encoder = _stack(ENCODER_LAYER, config.encoder)  # type: ignore[arg-type]  # this kind has one
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


def _attention(config: ModelConfig) -> Any:
    block = _block(config)
    return block.cross_attention if config.reads_memory else block.attention


SPECS: dict[str, Callable[[ModelConfig], Any]] = {
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _block,
    "TransformerDecoderLayer": _block,
    "TransformerEncoder": specs,
    "TransformerDecoder": specs,
    "Transformer": specs,
}
"""The declarations of the weights that a module has."""


def from_torch(kind: str, state: Mapping[str, ArrayLike], config: ModelConfig) -> Any:
    """The weights of a torch.nn module, in float32, as flaxformer has them; the table above says in which tree.

    Args:
      kind: a class of torch.nn, such as "TransformerEncoderLayer".
      state: its state dict: NumPy arrays, or tensors that NumPy can read. They are copied.
      config: as `config_of` makes it.

    Raises:
      UserError: the config is not that of such a module; or a tensor is missing, unexpected, of another shape or no
        floating-point numbers: named, with the shape found and the shape expected.
    """
    arrays = {name: np.asarray(tensor) for name, tensor in state.items()}
    return from_tensors(*_rows_and_specs(kind, config), arrays, f"state of torch.nn.{kind}")


def to_torch(kind: str, params: Any, config: ModelConfig) -> dict[str, np.ndarray]:
    """The state dict, of NumPy arrays, that a torch.nn module with these weights has: the inverse of `from_torch`.

    `arguments_of(kind, config)` makes the module; its `load_state_dict` wants each array through `torch.from_numpy`.

    Raises:
      UserError: the config is not that of such a module, or the weights are not those of the config: named, with the
        shape found and the shape expected.
    """
    unrolled = with_layout(params, "unrolled") if isinstance(params, Transformer) else params
    return to_tensors(*_rows_and_specs(kind, config), unrolled, f"weights for torch.nn.{kind}")


def _rows_and_specs(kind: str, config: ModelConfig) -> tuple[list[TensorRow], Any]:
    """The tensors that the module has, and our weights; every weight has its place in one tensor."""
    arguments_of(kind, config)  # refuses what torch's module does not do
    own = SPECS[kind](config)
    return declared(ROWS[kind](config), own), own
