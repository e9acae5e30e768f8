"""Kernels of attention: one table of the implementations, the calls that each takes, and the order of preference."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array

from flaxformer.nn.kernels import cudnn
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.products import reference_attention, xla_attention


class Kernel(NamedTuple):
    """One implementation of attention.

    Args:
      compute: the attention of a call that it takes, [*batch, T, N, d_v].
      unsupported_reason: why it does not take a call, in words; None if it does.
    """

    compute: Callable[[AttentionCall], Array]
    unsupported_reason: Callable[[AttentionCall], str | None]


def _takes_any(call: AttentionCall) -> None:
    """No reason: plain products take every call."""


KERNELS = {
    "cudnn": Kernel(cudnn.cudnn_attention, cudnn.unsupported_reason),
    "xla": Kernel(xla_attention, _takes_any),
    "reference": Kernel(reference_attention, _takes_any),
}
"""The kernels by name; "auto" is the first that takes the call."""


def choose(call: AttentionCall, implementation: str) -> Kernel:
    """Return the kernel of this name, or for "auto" the first that takes the call.

    Raises:
      ValueError: the kernel of this name does not take the call; the message says why.
    """
    if implementation == "auto":
        return next(kernel for kernel in KERNELS.values() if kernel.unsupported_reason(call) is None)
    if (why := KERNELS[implementation].unsupported_reason(call)) is not None:
        raise ValueError(f"implementation is '{implementation}': {why}")
    return KERNELS[implementation]
