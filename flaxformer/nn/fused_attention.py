"""Attention as one kernel of NVIDIA's cuDNN, which keeps no [T, S] matrix: what it takes, and whether it works here.

`dot_product_attention` takes it by itself wherever `unsupported_reason` finds nothing against it.

Source: Dao et al. 2022, "FlashAttention"; the kernel's limits are those that `jax.nn.dot_product_attention` checks.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.nn.masks import Both, Causal, Mask, Window

logger = logging.getLogger(__name__)


class AttentionCall(NamedTuple):
    """The arguments of `dot_product_attention` that decide which kernel takes them."""

    query: Float[Array, "*batch T N d_k"]
    key: Float[Array, "*batch S K d_k"]
    value: Float[Array, "*batch S K d_v"]
    mask: Mask | Bool[Array, "..."] | None
    bias: Float[Array, "..."] | None
    logit_cap: float | Float[Array, ""] | None

    @property
    def lengths(self) -> tuple[int, int]:
        """T and S."""
        return self.query.shape[-3], self.key.shape[-3]

    @property
    def widths(self) -> tuple[int, int]:
        """d_k and d_v."""
        return self.query.shape[-1], self.value.shape[-1]


CAPABILITIES: dict[str, Callable[[AttentionCall], bool]] = {
    "bfloat16 or float16": lambda call: (
        call.query.dtype == call.key.dtype == call.value.dtype and call.query.dtype in (jnp.bfloat16, jnp.float16)
    ),
    "d_k and d_v alike, a multiple of 8 up to 128": lambda call: (
        call.widths[0] == call.widths[1] <= 128 and call.widths[0] % 8 == 0
    ),
    "even T and S": lambda call: call.lengths[0] % 2 == call.lengths[1] % 2 == 0,
    "no bias": lambda call: call.bias is None,
    "no logit cap": lambda call: call.logit_cap is None,
    # Any other mask would be added to the logits, tile by tile, also where nothing is attended to.
    "no mask, Causal(), or Causal() & Window(a fixed width), of as many keys as queries": lambda call: (
        _native(call.mask) is not None and (call.mask is None or call.lengths[0] == call.lengths[1])
    ),
}
"""Conditions of the kernel, in words, each with its test of a call."""


def unsupported_reason(call: AttentionCall) -> str | None:
    """Return why the kernel cannot compute this call, or None if it can."""
    if jax.default_backend() != "gpu":
        return "cuDNN needs a GPU of NVIDIA"
    unmet = next((words for words, met in CAPABILITIES.items() if not met(call)), None)
    why = self_check() if unmet is None else f"cuDNN takes {unmet}"
    _log_choice(why)
    return why


def fused_attention(
    query: Float[Array, "*batch T N d"],
    key: Float[Array, "*batch S K d"],
    value: Float[Array, "*batch S K d"],
    mask: Mask | None,
    scale: float | Float[Array, ""],
    implementation: Any = "cudnn",
) -> Float[Array, "*batch T N d"]:
    """softmax(Q Kᵀ · scale) V under a mask that the kernel knows. `scale` may be traced: it multiplies the query."""
    causal, width = _native(mask)  # type: ignore[misc]
    scaled = (query.astype(jnp.float32) * scale).astype(query.dtype)
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (scaled, key, value))
    window = None if width is None else (width - 1, 0)
    mixed = jax.nn.dot_product_attention(
        q, k, v, scale=1.0, is_causal=causal, local_window_size=window, implementation=implementation
    )
    return mixed.reshape(query.shape)


@functools.cache
def self_check() -> str | None:
    """Return why a small call, forward and backward, fails or differs from plain products on this machine, or None.

    On CUDA 13, cuDNN finds no kernel unless `flaxformer.startup.cuda.preload` was called before JAX started.
    """
    with jax.ensure_compile_time_eval():
        numbers = jax.random.normal(jax.random.key(0), (3, 2, 64, 2, 64), jnp.bfloat16)

        def total(qkv: Array, implementation: str) -> Array:
            query, key, value = qkv
            mixed = fused_attention(query, key, value, Causal(), 0.125, implementation)
            return jnp.square(mixed.astype(jnp.float32)).sum()

        gradient = jax.jit(jax.grad(total), static_argnums=1)
        try:
            ours, plain = (gradient(numbers, name).astype(jnp.float32) for name in ("cudnn", "xla"))
        except Exception as error:
            return f"cuDNN fails here ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        stray = float(jnp.abs(ours - plain).max() / jnp.abs(plain).max())
    return None if stray < 0.02 else f"cuDNN's gradient strays here from that of plain products by {stray:.0%}"


def _native(mask: Any) -> tuple[bool, int | None] | None:
    """(causal, width of the window) of a mask that the kernel knows by itself; None for any other."""
    match mask:
        case None:
            return False, None
        case Causal(offset=int(offset)) if offset == 0:
            return True, None
        case (
            Both(first=Causal() as causal, second=Window(width=int(width), query=None, key=None))
            | Both(first=Window(width=int(width), query=None, key=None), second=Causal() as causal)
        ):
            return (True, width) if _native(causal) else None
    return None


@functools.cache
def _log_choice(why: str | None) -> None:
    """Log, once each, what was chosen and why."""
    logger.info("attention by %s", "cuDNN" if why is None else f"plain products: {why}")
