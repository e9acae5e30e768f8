"""Rematerialisation: which activations of a layer the backward pass stores, and which it computes again."""

from collections.abc import Callable
from typing import TypeVar, cast

import jax

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])

REMATS = {
    "none": None,
    "block": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
"""Stored activations: "none", all; "block", the inputs of each layer; "dots", these and the products with weights."""


def rematerialise(layer: FunctionT, remat: str, *, scanned: bool) -> FunctionT:
    """Return the function of a layer with the same values and gradients, which stores what `REMATS[remat]` says.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    # In a scan, XLA cannot merge the recomputation with the forward pass, so that need not be prevented.
    policy = REMATS[remat]
    return layer if policy is None else cast(FunctionT, jax.checkpoint(layer, policy=policy, prevent_cse=not scanned))
