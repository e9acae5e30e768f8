"""Rematerialisation: which activations of a layer the backward pass stores, and which it computes again."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import jax

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


class Remat(NamedTuple):
    """One choice of the activations that are stored between the forward and the backward pass.

    Args:
      stored: the stored activations, in words.
      policy: which of them `jax.checkpoint` stores; None to store all.
      branches: the branches whose function is computed again; none for the whole layer.
    """

    stored: str
    policy: Callable[..., bool] | None
    branches: tuple[str, ...] = ()


_POLICIES = jax.checkpoint_policies
REMATS = {
    "none": Remat("all", None),
    "feed_forward": Remat(
        "all but those within the feed-forward network", _POLICIES.nothing_saveable, ("feed_forward",)
    ),
    "attention": Remat(
        "all but those within attention and cross-attention",
        _POLICIES.nothing_saveable,
        ("attention", "cross_attention"),
    ),
    "all_dots": Remat("the inputs of each layer, and the results of all products", _POLICIES.dots_saveable),
    "dots": Remat(
        "the inputs of each layer, and the products with weights", _POLICIES.dots_with_no_batch_dims_saveable
    ),
    "dots_on_host": Remat(
        "as dots; the products are kept in the host's memory",
        _POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host"),
    ),
    "block": Remat("the inputs of each layer", _POLICIES.nothing_saveable),
}
"""Stored activations by name, from the most memory on the device to the least. Values and gradients are the same."""


def rematerialise(layer: FunctionT, remat: str, *, scanned: bool) -> FunctionT:
    """Return the function of a layer with the same values and gradients, which stores what `REMATS[remat]` says.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    return layer if REMATS[remat].branches else _checkpoint(layer, remat, scanned)


def rematerialise_branch(branch: FunctionT, name: str, remat: str, *, scanned: bool) -> FunctionT:
    """Return the function of one branch of a layer, such as "attention", likewise."""
    return _checkpoint(branch, remat, scanned) if name in REMATS[remat].branches else branch


def _checkpoint(function: FunctionT, remat: str, scanned: bool) -> FunctionT:
    # In a scan, XLA cannot merge the recomputation with the forward pass, so that need not be prevented.
    policy = REMATS[remat].policy
    if policy is None:
        return function
    return cast(FunctionT, jax.checkpoint(function, policy=policy, prevent_cse=not scanned))
