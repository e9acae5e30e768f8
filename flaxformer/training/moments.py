"""Optimizer state in bfloat16: half the memory of the moments, with stochastic rounding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, BFloat16, Float32, Int, PyTree, UInt32

MOMENT_DTYPES = ("float32", "bfloat16")
"""Dtypes in which the state of an optimizer is stored between two steps."""


class StoredState(NamedTuple):
    """State of a transform in bfloat16, and the number of steps, on which the rounding depends."""

    inner: optax.OptState
    steps: Int[Array, ""]


def stored_in_bfloat16(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return a transform that computes in float32 and keeps its float32 state in bfloat16, rounded stochastically.

    A moment that changes by a small factor per step, such as 0.999, would not change at all if it were rounded to the
    nearest of bfloat16's 8 bits. Numbers without axes, such as counts, keep their dtype; so do weights that the state
    holds, since a difference from them is far smaller than their own rounding.
    """

    def init(params: optax.Params) -> StoredState:
        weights = {id(leaf) for leaf in jax.tree.leaves(params)}
        state = transform.init(params)
        is_stored = jax.tree.map(lambda x: _is_moment(x) and id(x) not in weights, state)
        return StoredState(_store(state, is_stored, jnp.int32(0)), jnp.int32(0))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, StoredState]:
        assert isinstance(state, StoredState)
        updates, inner = transform.update(updates, jax.tree.map(_load, state.inner), params)
        steps, is_stored = state.steps + 1, jax.tree.map(lambda x: x.dtype == jnp.bfloat16, state.inner)
        return updates, StoredState(_store(inner, is_stored, steps), steps)

    return optax.GradientTransformation(init, update)


def _load(x: Array) -> Array:
    return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x


def _store(state: PyTree, is_stored: PyTree[bool], steps: Int[Array, ""]) -> PyTree:
    leaves, structure = jax.tree.flatten(state)
    return jax.tree.unflatten(
        structure,
        [
            round_stochastically(x, steps.astype(jnp.uint32) * 0x10001 + number) if is_moment else x
            for number, (x, is_moment) in enumerate(zip(leaves, jax.tree.leaves(is_stored), strict=True))
        ],
    )


def _is_moment(x: Array) -> bool:
    return x.ndim > 0 and x.dtype == jnp.float32


def round_stochastically(x: Float32[Array, "*shape"], salt: UInt32[Array, ""]) -> BFloat16[Array, "*shape"]:
    """Return x rounded to one of its two neighbours in bfloat16, each with the probability that makes the mean x.

    The random bits are a hash of the place in the array and of `salt`. They need no key, no memory, and no exchange
    between devices.
    """
    places = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        places = places * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    noise = _hash(places ^ _hash(salt)) >> 16
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    rounded = jax.lax.bitcast_convert_type((bits + noise) & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x) & jnp.isfinite(rounded), rounded, x).astype(jnp.bfloat16)


def _hash(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Return well-mixed bits of integers ("lowbias32" of Wellons 2018, "Prospecting for hash functions")."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
