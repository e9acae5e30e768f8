"""Layouts of a model's layers: unrolled, a tuple of trees, or scanned, arrays with a leading axis of layers."""

from typing import Literal

import jax

from flaxformer.core.params import Parameters, stack, subtree, unstack

Layout = Literal["auto", "unrolled", "scanned"]
DEEPEST_UNROLLED = 12
"""Largest depth that "auto" unrolls: unrolled layers are 1.6 times as fast on a CPU, but compile longer."""
Layers = Parameters | tuple[Parameters, ...]
"""Weights of the layers in either layout."""


class Periods(Parameters):
    """Scanned layers that differ and repeat with a period: one stacked tree per layer of the period."""

    blocks: tuple[Parameters, ...] = subtree(stacked=True)


def convert_layout(layers: Layers, layout: Layout) -> Layers:
    """Return the layers in a layout; "auto" decides by depth. Layers that do not repeat stay unrolled."""
    single = unroll(layers)
    if not single or layout == "unrolled" or (layout == "auto" and len(single) <= DEEPEST_UNROLLED):
        return single
    period = _period(single)
    if period == 1:
        return stack(single)
    if period == len(single) > 1:
        return single
    return Periods(blocks=tuple(stack(single[place::period]) for place in range(period)))


def unroll(layers: Layers) -> tuple[Parameters, ...]:
    """Return the layers as a tuple of trees."""
    if isinstance(layers, tuple):
        return layers
    if not isinstance(layers, Periods):
        return unstack(layers)
    stacks = [unstack(stacked) for stacked in layers.blocks]
    return tuple(layer for period in zip(*stacks, strict=True) for layer in period)


def _period(layers: tuple[Parameters, ...]) -> int:
    """Return the number of layers after which structures and shapes repeat, a divisor of the number of layers."""
    kinds = [(jax.tree.structure(layer), tuple(leaf.shape for leaf in jax.tree.leaves(layer))) for layer in layers]
    sizes = [size for size in range(1, len(kinds) + 1) if len(kinds) % size == 0]
    return next(size for size in sizes if kinds == kinds[:size] * (len(kinds) // size))
