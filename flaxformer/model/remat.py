"""Rematerialisation: what the backward pass keeps of a layer's forward pass, and what it computes again, by name."""

from collections.abc import Callable
from typing import TypeVar

import jax

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])

REMATS = {
    "none": None,
    "block": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
"""none: all is kept; block: a layer's inputs alone; dots: the products with weights too, but not those of attention."""


def rematerialised(layer: FunctionT, remat: str, *, scanned: bool) -> FunctionT:
    """The function of one layer with the same values and gradients, keeping for the backward pass what `remat` says.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    # A scan's body is compiled once: nothing there could be merged with the first computation, so nothing forbids it.
    policy = REMATS[remat]
    return layer if policy is None else jax.checkpoint(layer, policy=policy, prevent_cse=not scanned)  # type: ignore[return-value]
