"""Attention by tokamax, Google's library of kernels, on NVIDIA GPUs where it is installed.

It takes what cuDNN does not: a fixed logit cap, and padding anywhere. Its masks are booleans that broadcast, so that
padding [B, 1, 1, S] stays small; segments and explicit masks would need [T, S] and are refused.

Source: github.com/openxla/tokamax; Dao et al. 2022, "FlashAttention".
"""

import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.nn.formulations import platform
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.structure import Structure, as_mask, structure
from flaxformer.nn.masks import Causal, lengths_to_valid


def unsupported_reason(call: AttentionCall) -> str | None:
    """Return why the kernel cannot compute a call, or None if it can."""
    if not platform().is_attached:
        return "tokamax chooses its kernel on the device"
    if not is_installed():
        return "tokamax is not installed"
    return unmet_condition(call) or self_check()


def unmet_condition(call: AttentionCall) -> str | None:
    """Return the first condition of the kernels that a call does not meet, or None if it meets all."""
    known, (T, S) = structure(call.mask), call.lengths
    if not call.query.dtype == call.key.dtype == call.value.dtype or call.query.dtype != jnp.bfloat16:
        return "tokamax takes bfloat16"
    if call.bias is not None:
        return "tokamax is used without a bias"
    if call.logit_cap is not None and not isinstance(call.logit_cap, int | float):
        return "tokamax takes a fixed logit cap"
    if not known.is_whole or known.segments is not None:
        return "tokamax would need this mask as booleans [T, S]"
    if (known.least, known.greatest) != (None, None) and (known.least != 0 or T != S):
        return "tokamax is used with Causal(), and with Window(a fixed width) beside it, of as many keys as queries"
    if known.greatest is not None and (known.valid is not None or known.lengths is not None):
        return "tokamax is used with padding or a window"
    return None


def tokamax_attention(call: AttentionCall, implementation: str = "") -> Float[Array, "*batch T N d_v"]:
    """softmax(cap(Q Kᵀ · scale)) V under a mask that the kernels take. `scale` may be traced.

    Args:
      implementation: one of tokamax's; by default its Triton kernel.
    """
    import tokamax

    known, (T, S) = structure(call.mask), call.lengths
    if (mask := as_mask(call.mask)) is not None:
        mask.check(T, S)
    scaled = (call.query.astype(jnp.float32) * call.scale).astype(call.query.dtype)
    batch, key, value = call.query.shape[:-3], call.key, call.value
    seen = _valid_keys(known, batch, S)
    if seen is not None:
        key, value = (jnp.where(seen[..., None, None], x, 0) for x in (key, value))
        before = jnp.cumsum(seen, -1) > 0 if known.is_causal else seen.any(-1, keepdims=True)
        # A query without keys gets all those before it, which are 0 with their values.
        seen = seen | ~before
    return tokamax.dot_product_attention(
        scaled,
        key,
        value,
        mask=None if seen is None else seen[..., None, None, :],
        scale=1.0,
        is_causal=known.is_causal,
        local_window_size=None if known.greatest is None else (known.greatest, 0),
        logits_soft_cap=None if call.logit_cap is None else float(call.logit_cap),
        implementation=implementation or "triton",
    )


def _valid_keys(known: Structure, batch: tuple[int, ...], S: int) -> Array | None:
    """Return where keys are not padding, [*batch, S]; None without padding."""
    seen = known.valid
    if known.lengths is not None:
        inside = lengths_to_valid(known.lengths, S)
        seen = inside if seen is None else seen & inside
    return None if seen is None else jnp.broadcast_to(seen, (*batch, S))


@functools.cache
def is_installed() -> bool:
    """True if the package can be imported."""
    return importlib.util.find_spec("tokamax") is not None


@functools.cache
def self_check() -> str | None:
    """Return why a small call, forward and backward, fails or differs from plain products on this machine, or None."""
    with jax.ensure_compile_time_eval():
        numbers = jax.random.normal(jax.random.key(0), (3, 2, 128, 2, 64), jnp.bfloat16)

        def total(qkv: Array, **settings: Any) -> Array:
            query, key, value = qkv
            call = AttentionCall(query, key, value, mask=Causal(), scale=0.125)
            return jnp.square(tokamax_attention(call, **settings).astype(jnp.float32)).sum()

        try:
            kernel, plain = (
                jax.jit(jax.grad(functools.partial(total, implementation=name)))(numbers).astype(jnp.float32)
                for name in ("", "xla")
            )
        except Exception as raised:
            return f"tokamax fails here ({type(raised).__name__}: {str(raised).partition(chr(10))[0]})"
        error = float(jnp.abs(kernel - plain).max() / jnp.abs(plain).max())
    return None if error < 0.02 else f"tokamax's gradient differs here from that of plain products by {error:.0%}"
