"""Attention as one fused kernel of NVIDIA's cuDNN, which holds no [T, S] matrix.

`dot_product_attention` uses it for every call without an `unsupported_reason`.

Source: Dao et al. 2022, "FlashAttention"; the kernel's limits are those that `jax.nn.dot_product_attention` checks.
"""

import functools
import logging
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.masks import Both, Causal, Window

logger = logging.getLogger(__name__)


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
    # The kernel would add any other mask to the logits of whole tiles, whether or not anything is attended to there.
    "no mask, Causal(), or Causal() & Window(a fixed width), of as many keys as queries": lambda call: (
        _native(call.mask) is not None and (call.mask is None or call.lengths[0] == call.lengths[1])
    ),
}
"""Conditions of the kernel, in words, each with its test of a call."""


def unsupported_reason(call: AttentionCall) -> str | None:
    """Return why the kernel cannot compute this call, or None if it can."""
    if jax.default_backend() != "gpu":
        return "cuDNN needs an NVIDIA GPU"
    unmet = next((words for words, met in CAPABILITIES.items() if not met(call)), None)
    why = self_check() if unmet is None else f"cuDNN takes {unmet}"
    _log_choice(why)
    return why


def cudnn_attention(
    call: AttentionCall, implementation: Literal["cudnn", "xla"] = "cudnn"
) -> Float[Array, "*batch T N d_v"]:
    """softmax(Q Kᵀ · scale) V under a mask that the kernel knows. `scale` may be traced: it multiplies the query.

    Args:
      implementation: that of `jax.nn.dot_product_attention`; "xla" serves to check the arguments without a GPU.
    """
    known = _native(call.mask)
    assert known is not None
    causal, width = known
    scaled = (call.query.astype(jnp.float32) * call.scale).astype(call.query.dtype)
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (scaled, call.key, call.value))
    window = None if width is None else (width - 1, 0)
    y = jax.nn.dot_product_attention(
        q, k, v, scale=1.0, is_causal=causal, local_window_size=window, implementation=implementation
    )
    return y.reshape(call.query.shape)


@functools.cache
def self_check() -> str | None:
    """Return why a small call, forward and backward, fails or differs from plain products on this machine, or None.

    On CUDA 13, cuDNN finds no kernel unless `flaxformer.startup.cuda.preload` was called before JAX started.
    """
    with jax.ensure_compile_time_eval():
        numbers = jax.random.normal(jax.random.key(0), (3, 2, 64, 2, 64), jnp.bfloat16)

        def total(qkv: Array, implementation: Literal["cudnn", "xla"]) -> Array:
            query, key, value = qkv
            y = cudnn_attention(AttentionCall(query, key, value, mask=Causal(), scale=0.125), implementation)
            return jnp.square(y.astype(jnp.float32)).sum()

        gradient = jax.jit(jax.grad(total), static_argnums=1)
        try:
            kernel, plain = (gradient(numbers, name).astype(jnp.float32) for name in ("cudnn", "xla"))
        except Exception as raised:
            return f"cuDNN fails here ({type(raised).__name__}: {str(raised).partition(chr(10))[0]})"
        error = float(jnp.abs(kernel - plain).max() / jnp.abs(plain).max())
    return None if error < 0.02 else f"cuDNN's gradient differs here from that of plain products by {error:.0%}"


def _native(mask: object) -> tuple[bool, int | None] | None:
    """(is causal, width of the window) of a mask that the kernel computes itself; None for any other."""
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
    """Log each choice once, with its reason."""
    logger.info("attention by %s", "cuDNN" if why is None else f"plain products: {why}")
