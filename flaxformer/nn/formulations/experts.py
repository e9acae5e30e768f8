"""Formulations of a mixture of experts: tokens sorted by expert, each of which computes its own."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.nn.formulations import Formulation
from flaxformer.nn.widen import widen

SMALLEST = 8
"""Rows of a block below which copies of its matrices cost more than they spare."""


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


def blocks(
    x: Float[Array, "*batch D"],
    up: Float[Array, "experts D d_ff"],
    down: Float[Array, "experts d_ff D"],
    gates: Float[Array, "*batch active"],
    chosen: Int[Array, "*batch active"],
    activation: Callable[[Array], Array] = jax.nn.relu,
) -> Float[Array, "*batch D"]:
    """Return the mixture from products of blocks of rows, all of one size, each with the matrices of its expert.

    The rows of an expert fill its blocks but for the last one, whose empty rows are 0. With blocks of half of the mean
    number of rows of an expert, there are about 3 blocks, and copies of matrices, per expert. Blocks as in Gale et al.
    2022, "MegaBlocks", arXiv:2211.15841, where they are those of a sparse product.
    """
    pairs, (count, size) = chosen.reshape(-1), _blocks(chosen.size, len(up))  # pairs of a token and one of its experts
    order, rows = jnp.argsort(pairs), jnp.bincount(pairs, length=len(up))
    blocks_of_expert = -(-rows // size)
    ends = jnp.cumsum(blocks_of_expert)
    row_in_expert = jnp.arange(pairs.size) - (jnp.cumsum(rows) - rows)[pairs[order]]
    places = size * (ends - blocks_of_expert)[pairs[order]] + row_in_expert
    tokens = jnp.full(count * size, pairs.size).at[places].set(order) // chosen.shape[-1]  # past the last: an empty row
    filled = x.reshape(-1, x.shape[-1]).at[tokens].get(mode="fill", fill_value=0).reshape(count, size, -1)
    expert = jnp.searchsorted(ends, jnp.arange(count), side="right", method="compare_all")
    hidden = activation(filled @ up.at[expert].get(mode="clip"))
    y = (hidden @ down.at[expert].get(mode="clip")).reshape(count * size, -1)
    y = y[jnp.zeros_like(places).at[order].set(places)].reshape(*chosen.shape, -1)
    return (widen(y) * gates[..., None]).sum(-2).astype(x.dtype)


def _blocks(rows: int, experts: int) -> tuple[int, int]:
    """Return the largest number of blocks that so many rows of so many experts need, and their size."""
    size = 2 ** max(0, round(math.log2(rows / experts / 2)))
    return min(rows, (rows + experts * (size - 1)) // size), size


def _few_rows(x: Array, up: Array, down: Array, gates: Array, chosen: Array, activation: object = None) -> str | None:
    """Return why all experts may as well compute all tokens."""
    count, size = _blocks(chosen.size, len(up))
    if 2 * count <= len(up):  # of a few tokens in decoding: most matrices are not read
        return None
    all_rows = chosen.size // chosen.shape[-1] * len(up)
    if 2 * count * size > all_rows:
        return f"{count} blocks of {size} rows are not far fewer than {all_rows} rows of all tokens by all experts"
    return None if size >= SMALLEST else f"an expert has few tokens: blocks have {size} rows; expected {SMALLEST}"


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
    ),
    "blocks": Formulation(
        blocks,
        gain="1.5 times the tokens of each expert in place of all tokens by all experts: 3.2 times as fast with 2 of 8 "
        "on a CPU (`flaxformer bench catalog`); not measured on a GPU",
        platforms=("cpu", "gpu"),
        unsupported_reason=_unsupported_reason,
        unsuitable_reason=_few_rows,
    ),
}
