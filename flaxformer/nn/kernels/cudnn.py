"""Attention as one fused kernel of NVIDIA's cuDNN, which holds no [T, S] matrix.

Source: Dao et al. 2022, "FlashAttention"; the kernel's limits are those that `jax.nn.dot_product_attention` checks.
"""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.nn.formulations import platform
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.structure import as_mask, structure
from flaxformer.nn.masks import Causal, lengths_to_valid

MULTIPLE, WIDEST = 8, 128
"""Widths of heads are padded to a multiple of this, up to that."""


def takes_mask(call: AttentionCall) -> bool:
    """True if the kernel computes the mask itself, so that it never adds one to the logits of a tile."""
    known, (T, S) = structure(call.mask), call.lengths
    has_band = known.least is not None or known.greatest is not None
    if not known.is_whole or known.valid is not None or known.segments is not None:
        return False
    if known.greatest is not None and known.lengths is not None:  # late queries would see no key
        return False
    return not has_band or (known.least == 0 and T == S)


CAPABILITIES: dict[str, Callable[[AttentionCall], bool]] = {
    "bfloat16 or float16": lambda call: (
        call.query.dtype == call.key.dtype == call.value.dtype and call.query.dtype in (jnp.bfloat16, jnp.float16)
    ),
    f"d_k and d_v up to {WIDEST}": lambda call: max(call.widths) <= WIDEST,
    "no bias": lambda call: call.bias is None,
    "no logit cap": lambda call: call.logit_cap is None,
    "no mask, Causal(), or Causal() & Window(a fixed width), of as many keys as queries; and without a window, "
    "Prefix(lengths)": takes_mask,
}
"""Conditions of the kernel, in words, each with its test of a call."""


def unsupported_reason(call: AttentionCall) -> str | None:
    """Return why the kernel cannot compute this call, or None if it can."""
    unmet = next((words for words, met in CAPABILITIES.items() if not met(call)), None)
    if unmet is not None:
        return f"cuDNN takes {unmet}"
    return self_check() if platform().is_attached else None


def cudnn_attention(
    call: AttentionCall, implementation: Literal["cudnn", "xla"] = "cudnn"
) -> Float[Array, "*batch T N d_v"]:
    """softmax(Q Kᵀ · scale) V under a mask that the kernel knows. `scale` may be traced: it multiplies the query.

    Odd lengths, and widths that are unequal or no multiple of 8, are padded with zeros.

    Args:
      implementation: that of `jax.nn.dot_product_attention`; "xla" serves to check the arguments without a GPU.
    """
    known, (T, S), lengths = structure(call.mask), call.lengths, None
    if (mask := as_mask(call.mask)) is not None:
        mask.check(T, S)
    scaled = (call.query.astype(jnp.float32) * call.scale).astype(call.query.dtype)
    width = -(-max(call.widths) // MULTIPLE) * MULTIPLE
    q, k, v = (_pad(x.reshape(-1, *x.shape[-3:]), width) for x in (scaled, call.key, call.value))
    if known.lengths is not None:
        lengths = jnp.broadcast_to(known.lengths, call.query.shape[:-3]).reshape(-1).clip(0, S)
    elif S % 2 and known.least is None:  # without a causal mask, queries would see the key that pads S
        lengths = jnp.full(q.shape[0], S)
    queries: Array | None = None
    keys: Array | None = None
    if lengths is not None:
        inside = lengths_to_valid(lengths, k.shape[1])[..., None, None]
        k, v = (jnp.where(inside, x, 0) for x in (k, v))
        # Under vmap, JAX needs lengths that are mapped if the queries are. A sequence of length 0 gets one key, which
        # is 0, and its output is dropped below.
        zero = jnp.isnan(q[:, 0, 0, 0]).astype(jnp.int32) * 0
        queries, keys = zero + q.shape[1], zero + lengths.clip(1).astype(jnp.int32)
    y = jax.nn.dot_product_attention(
        q,
        k,
        v,
        scale=1.0,
        is_causal=known.least is not None,
        local_window_size=None if known.greatest is None else (known.greatest, 0),
        implementation=implementation,
        query_seq_lengths=queries,
        key_value_seq_lengths=keys,
    )
    if lengths is not None:
        y = jnp.where(lengths[:, None, None, None] > 0, y, 0)
    return y[:, :T, :, : call.widths[1]].reshape(*call.query.shape[:-1], call.widths[1])


def _pad(x: Float[Array, "B length heads d"], width: int) -> Float[Array, "B length heads d"]:
    """Pad with zeros to an even length and to a width."""
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, width - x.shape[3])))


@functools.cache
def self_check() -> str | None:
    """Return why a small call, forward and backward, fails or differs from plain products on this machine, or None.

    On CUDA 13, cuDNN finds no kernel unless `flaxformer.system.startup.preload_nvrtc` was called before JAX started.
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
