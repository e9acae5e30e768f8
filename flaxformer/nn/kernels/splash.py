"""Attention as a fused TPU kernel, JAX's splash attention, which holds no [T, S] matrix and skips excluded tiles.

Causal masks and windows of fixed widths reach it as the band of its mask; padding, lengths and segments as segment ids.
Each query also has a sink: a logit so low that it is 0 beside any other, and that gives a query without keys the
output and the gradients 0.

Source: `jax.experimental.pallas.ops.tpu.splash_attention`; Dao 2023, "FlashAttention-2".
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Float, Int

from flaxformer.nn.heads import heads_first, heads_last
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.chunked import reachable_keys
from flaxformer.nn.kernels.structure import Structure, as_mask, structure
from flaxformer.nn.masks import lengths_to_valid

LANES = 128
BLOCKS = (512, 256, LANES)
"""Queries and keys per tile: the first that divides their number, padded to a multiple of the last."""
MIN_LOGITS = 256 * 256
"""Logits per head (T · S) below which plain products are faster."""
SINK = -1e30
BATCH_AXES, HEAD_AXIS = ("data", "fsdp"), "tensor"
"""Axes of the mesh that divide the batch and the heads."""


def unsupported_reason(call: AttentionCall) -> str | None:
    """Return the first condition of the kernel that a call does not meet; None if it meets all."""
    if not call.query.dtype == call.key.dtype == call.value.dtype:
        return "splash attention takes queries, keys and values of one dtype"
    if call.query.dtype not in (jnp.float32, jnp.bfloat16):
        return "splash attention takes float32 or bfloat16"
    if call.bias is not None:
        return "splash attention takes no bias"
    if call.logit_cap is not None and not isinstance(call.logit_cap, int | float):
        return "splash attention takes a fixed logit cap"
    if not structure(call.mask).is_whole:
        return "splash attention takes masks of Causal, Window of a fixed width, Padding, Prefix, and one Segments"
    return None


def unsuitable_reason(call: AttentionCall) -> str | None:
    """Return why plain products are better, or None if the kernel is."""
    T, S = call.lengths
    return f"T · S is {T * S:,}; splash attention is faster from {MIN_LOGITS:,}" if T * S < MIN_LOGITS else None


def splash_attention(call: AttentionCall, interpret: bool = False) -> Float[Array, "*batch T N d_v"]:
    """softmax(cap(Q Kᵀ · scale)) V under a mask that the kernel takes. `scale` may be traced: it multiplies the query.

    Args:
      interpret: True to run the kernel's program on any platform, slowly.
    """
    mask, (T, S) = as_mask(call.mask), call.lengths
    known = structure(mask)
    if mask is not None:
        mask.check(T, S)
    key, value = call.key, call.value
    if mask is not None and (not known.is_static or T != S):
        batch = call.query.shape[:-3]
        reached = reachable_keys(mask, batch, T, S)[..., 0, :, None, None]
        key, value = (jnp.where(reached, x, 0) for x in (key, value))
    scaled = (call.query.astype(jnp.float32) * call.scale).astype(call.query.dtype)
    pads = (-T % LANES, -S % LANES)
    q, k, v = (
        jnp.pad(heads_first(x), ((0, 0), (0, 0), (0, more), (0, 0)))
        for x, more in ((scaled, pads[0]), (key, pads[1]), (value, pads[1]))
    )
    segments = _segments(known, call.query.shape[:-3], (T, S), pads)
    cap = None if call.logit_cap is None else float(call.logit_cap)
    run = functools.partial(_heads, known=known, cap=cap, interpret=interpret)
    y = _over_mesh(run, q, k, v, segments)
    return heads_last(y[:, :, None, :T], call.query.shape[:-1])


def _segments(
    known: Structure, batch: tuple[int, ...], lengths: tuple[int, int], pads: tuple[int, int]
) -> tuple[Int[Array, "B T"], Int[Array, "B S"]] | None:
    """Return ids of queries and keys, which are equal where a query may attend to a key within the band."""
    (T, S), never = lengths, jnp.iinfo(jnp.int32).min
    is_padding_last = pads[1] == 0 or (known.is_causal and T <= S)
    if known.lengths is None and known.valid is None and known.segments is None and is_padding_last:
        return None
    query, key = jnp.zeros((*batch, T), jnp.int32), jnp.zeros((*batch, S), jnp.int32)
    if known.segments is not None:
        query, key = (
            jnp.broadcast_to(ids.astype(jnp.int32), x.shape)
            for ids, x in zip(known.segments, (query, key), strict=True)
        )
    if known.valid is not None:
        key = jnp.where(known.valid, key, never)
    if known.lengths is not None:
        inside = lengths_to_valid(known.lengths, S)
        key = jnp.where(inside, key, never)
    query, key = query.reshape(-1, T), key.reshape(-1, S)
    return (
        jnp.pad(query, ((0, 0), (0, pads[0]))),
        jnp.pad(key, ((0, 0), (0, pads[1])), constant_values=never),
    )


def _heads(
    q: Float[Array, "B N T d_k"],
    k: Float[Array, "B K S d_k"],
    v: Float[Array, "B K S d_v"],
    segments: tuple[Int[Array, "B T"], Int[Array, "B S"]] | None,
    *,
    known: Structure,
    cap: float | None,
    interpret: bool,
) -> Float[Array, "B N T d_v"]:
    """Call the kernel for all heads of each example; T and S are multiples of `LANES`."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape, heads = (q.shape[2], k.shape[2]), q.shape[1]
    if known.least is None and known.greatest is None:
        head_mask: masks.Mask = masks.FullMask(shape)
    else:
        after = None if known.least is None else -known.least
        head_mask = masks.LocalMask(shape, window_size=(known.greatest, after), offset=0)
    query_block, key_block = (next(size for size in BLOCKS if length % size == 0) for length in shape)
    sizes = kernels.BlockSizes(
        block_q=query_block,
        block_kv=key_block,
        block_q_dkv=query_block,
        block_kv_dkv=key_block,
        block_q_dq=query_block,
        block_kv_dq=key_block,
    )
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([head_mask] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=cap,
        interpret=interpret,
    )
    sinks = jnp.full(heads, SINK, jnp.float32)
    ids = None if segments is None else kernels.SegmentIds(*segments)
    return jax.vmap(kernel, in_axes=(0, 0, 0, None if ids is None else 0, None))(q, k, v, ids, sinks)


def _over_mesh(
    run: functools.partial[Array], q: Array, k: Array, v: Array, segments: tuple[Array, Array] | None
) -> Array:
    """Call `run` on each device's examples and heads, since the compiler cannot divide a kernel over a mesh.

    It refuses a kernel within `shard_map` over some axes of a mesh while others, even of size 1, are left to it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    free = {name: mesh.shape[name] for name, kind in kinds if kind == AxisType.Auto}
    if not free:
        return run(q, k, v, segments)
    count, batch = 1, []
    for name in BATCH_AXES:
        if name in free and q.shape[0] % (count * free[name]) == 0:
            batch.append(name)
            count *= free[name]
    along = HEAD_AXIS if HEAD_AXIS in free and k.shape[1] % free[HEAD_AXIS] == 0 else None
    batch_spec = PartitionSpec(tuple(batch) or None)
    operand_spec = PartitionSpec(tuple(batch) or None, along)
    return jax.shard_map(
        run,
        in_specs=(operand_spec, operand_spec, operand_spec, None if segments is None else (batch_spec, batch_spec)),
        out_specs=operand_spec,
        axis_names=set(free),
        check_vma=False,
    )(q, k, v, segments)
