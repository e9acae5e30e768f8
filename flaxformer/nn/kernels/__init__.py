"""Kernels of attention: one table of the implementations, the calls that each takes, and the order of preference.

| kernel | platform | masks | also |
| --- | --- | --- | --- |
| cudnn | NVIDIA GPU | none; causal, with a fixed window or with lengths; lengths | bfloat16, float16; d ≤ 128 |
| splash | TPU | causal, windows of fixed width, padding, lengths, segments | a fixed logit cap; any d |
| tokamax | NVIDIA GPU | causal, window, padding, lengths | bfloat16; a fixed logit cap; where it is installed |
| chunked | any | any | bias, traced scale and cap; above `chunked.MAX_LOGITS` logits per head |
| xla, reference | any | any | everything; they hold all logits [T, S] |
"""

import contextlib
import contextvars
import functools
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
from jaxtyping import Array

from flaxformer.nn.kernels import chunked, cudnn, splash, tokamax
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.products import reference_attention, xla_attention
from flaxformer.nn.kernels.structure import structure

logger = logging.getLogger(__name__)


def _no_reason(call: AttentionCall) -> None:
    """No reason: the kernel takes every call."""


class Kernel(NamedTuple):
    """One implementation of attention.

    Args:
      compute: the attention of a call that it takes, [*batch, T, N, d_v].
      unsupported_reason: why it does not take a call, in words; None if it does.
      unsuitable_reason: why "auto" passes over a call that it takes, in words; None if it does not.
    """

    compute: Callable[[AttentionCall], Array]
    unsupported_reason: Callable[[AttentionCall], str | None] = _no_reason
    unsuitable_reason: Callable[[AttentionCall], str | None] = _no_reason


KERNELS = {
    "cudnn": Kernel(cudnn.cudnn_attention, cudnn.unsupported_reason),
    "splash": Kernel(splash.splash_attention, splash.unsupported_reason, splash.unsuitable_reason),
    "tokamax": Kernel(tokamax.tokamax_attention, tokamax.unsupported_reason),
    "chunked": Kernel(chunked.chunked_attention, chunked.unsupported_reason, chunked.unsuitable_reason),
    "xla": Kernel(xla_attention),
    "reference": Kernel(reference_attention),
}
"""The kernels by name; "auto" is the first that takes the call and suits it."""


class KernelChoice(NamedTuple):
    """The kernel of one attention, and why no earlier one of the table.

    Args:
      kernel: its name; "steps" if a component computes logits and weights itself.
      call: shapes, dtype and mask, in words.
      reasons: of each kernel that was passed over, in the order of the table.
    """

    kernel: str
    call: str
    reasons: tuple[str, ...]


_CHOICES: contextvars.ContextVar[list[KernelChoice] | None] = contextvars.ContextVar("choices", default=None)
_FORCED = jax.make_user_context(None)


@contextlib.contextmanager
def recording() -> Iterator[list[KernelChoice]]:
    """Yield a list of the kernels that are chosen, in this thread, while programs are traced."""
    found: list[KernelChoice] = []
    token = _CHOICES.set(found)
    try:
        yield found
    finally:
        _CHOICES.reset(token)


def using(name: str) -> contextlib.AbstractContextManager[object]:
    """Return a context in which "auto" is the kernel of this name, in programs that are traced there."""
    return _FORCED(name)


def choose(call: AttentionCall, implementation: str) -> Kernel:
    """Return the kernel of this name, or for "auto" the first that takes the call and suits it.

    Raises:
      ValueError: the kernel of this name does not take the call; the message says why.
    """
    name, reasons = implementation if implementation != "auto" else _FORCED.value or "auto", []
    if name != "auto":
        if (why := KERNELS[name].unsupported_reason(call)) is not None:
            raise ValueError(f"implementation is '{name}': {why}")
    else:
        for name, kernel in KERNELS.items():
            why = kernel.unsupported_reason(call) or kernel.unsuitable_reason(call)
            if why is None:
                break
            reasons.append(f"{name}: {why}")
    record(KernelChoice(name, _describe(call), tuple(reasons)))
    return KERNELS[name]


def record(choice: KernelChoice) -> None:
    """Record a choice where `recording` asks for it, and log each once."""
    if (found := _CHOICES.get()) is not None:
        found.append(choice)
    _log(choice)


@functools.cache
def _log(choice: KernelChoice) -> None:
    logger.info("attention by %s%s", choice.kernel, "".join(f"; {reason}" for reason in choice.reasons))


def _describe(call: AttentionCall) -> str:
    """Return the shapes, the dtype and the mask of a call in words."""
    (T, S), (d_k, d_v) = call.lengths, call.widths
    heads, key_heads = call.query.shape[-2], call.key.shape[-2]
    parts = [
        f"T {T}" if T == S else f"T {T}, S {S}",
        f"{heads} heads" if heads == key_heads else f"{heads} heads on {key_heads}",
        f"d {d_k}" if d_k == d_v else f"d {d_k} and {d_v}",
        call.query.dtype.name,
        structure(call.mask).describe(),
        *(["bias"] if call.bias is not None else []),
        *(["logit cap"] if call.logit_cap is not None else []),
    ]
    return ", ".join(parts)
