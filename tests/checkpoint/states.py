"""States to save, as a function of the step, with every dtype and random keys."""

import jax
import jax.numpy as jnp
import numpy as np


def numbers(step, size=4096):
    """Return a small state that is a function of the step."""
    draw = np.random.default_rng(step)
    return {
        "params": {"a": jnp.asarray(draw.normal(size=(3, size)), jnp.float32), "scale": jnp.float32(step)},
        "half": jnp.asarray(draw.normal(size=(5, 7)), jnp.bfloat16),
        "key": jax.random.key(step),
        "keys": jax.random.split(jax.random.key(step), 3),
        "flags": jnp.asarray(draw.integers(0, 2, 11), bool),
        "nothing": jnp.zeros((0, 3)),
        "host": np.asarray(draw.integers(0, 99, 13), np.int64),
        "step": jnp.int32(step),
    }


def bits(tree):
    """Return the structure of a tree, and shape, dtype and bytes of every leaf."""
    words = [
        jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(tree)
    ]
    return jax.tree.structure(tree), [(np.shape(w), str(w.dtype), np.asarray(w).tobytes()) for w in words]
