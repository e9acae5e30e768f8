"""Formulation of a mixture of experts: tokens sorted by expert, each of which computes its own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.nn.formulations import Formulation
from flaxformer.nn.widen import widen


def ragged(
    x: Float[Array, "*batch D"],
    up: Float[Array, "experts D d_ff"],
    down: Float[Array, "experts d_ff D"],
    gates: Float[Array, "*batch active"],
    chosen: Int[Array, "*batch active"],
    activation: Callable[[Array], Array] = jax.nn.relu,
) -> Float[Array, "*batch D"]:
    """Return the mixture from products of groups of rows of any size, `jax.lax.ragged_dot`."""
    active = chosen.shape[-1]
    order = jnp.argsort(chosen.reshape(-1))  # of pairs of a token and one of its experts
    sizes = jnp.bincount(chosen.reshape(-1), length=len(up))
    rows = x.reshape(-1, x.shape[-1])[order // active]
    rows = jax.lax.ragged_dot(activation(jax.lax.ragged_dot(rows, up, sizes)), down, sizes)
    y = rows[jnp.argsort(order)].reshape(*chosen.shape, x.shape[-1])
    return (widen(y) * gates[..., None]).sum(-2).astype(x.dtype)


def _unsupported_reason(*arguments: object, **options: object) -> str | None:
    """Return why the call is not taken: a product of groups is not divided between devices."""
    tensor = jax.sharding.get_abstract_mesh().shape.get("tensor", 1)
    return None if tensor == 1 else f"experts are divided between {tensor} devices"


FORMULATIONS = {
    "ragged": Formulation(
        ragged,
        # Elsewhere JAX computes a ragged product for all experts, under masks.
        gain="a token costs the FLOPs of its own experts alone, where ragged products are an instruction",
        platforms=("tpu",),
        unsupported_reason=_unsupported_reason,
    )
}
