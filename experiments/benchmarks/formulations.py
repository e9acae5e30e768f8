"""Formulations that are faster on a GPU: training as it is, and with each of them undone.

Command: flaxformer bench formulations size=gpt2
Ways: `as-it-is`; one way per formulation, named after the form without it; `none-of-them`.
On a CPU, only the chunks of logits are used, so the other ways compile the same program.
Cost: per round, one process of 30 s per way.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sizes import SIZES, size_of

from flaxformer.bench import Benchmark, Way, Work


def replace(owner: ModuleType | type, name: str, value: Any) -> None:
    """Set an attribute, which must exist, so that no way measures the package unchanged."""
    getattr(owner, name)
    setattr(owner, name, value)


def without_pairs() -> None:
    """Functions of single elements read bfloat16 one element at a time."""
    from flaxformer.nn import element_pairs

    replace(element_pairs, "FEWEST", sys.maxsize)


def scale_on_queries() -> None:
    """The attention scale multiplies the queries, not their map."""
    from flaxformer.components.attention import Attention

    replace(Attention, "_can_scale_map", lambda *_: False)


def merged_products() -> None:
    """XLA merges products that have an operand in common."""
    from flaxformer.training import compiling

    replace(compiling, "ON_GPU", {})


def variance_in_two_passes() -> None:
    """The mean is subtracted before the sum of squares."""
    from flaxformer.nn import norms

    own = norms._with_own_derivative
    replace(norms, "_with_own_derivative", lambda x, epsilon, centre, _: own(x, epsilon, centre, False))


def small_chunks_of_logits() -> None:
    """Half as many logits per chunk."""
    from flaxformer.nn import chunks

    replace(chunks, "LARGE", chunks.LARGE // 2)


CHANGES = [without_pairs, scale_on_queries, merged_products, variance_in_two_passes, small_chunks_of_logits]


def training_with(*changes: Callable[[], None]) -> Callable[[Work], dict[str, Any]]:
    """Return the training of one device, after these changes to the package in its process."""

    def measure(work: Work) -> dict[str, Any]:
        from ours import train

        for change in changes:
            change()
        return train(work, size_of(work.point))

    return measure


def way(name: str, *changes: Callable[[], None]) -> Way:
    """Return a way that trains after these changes."""
    return Way(name, training_with(*changes), role="ours")


benchmark = Benchmark(
    question="What does each formulation for GPUs gain?",
    ways=[
        way("as-it-is"),
        *(way(change.__name__.replace("_", "-"), change) for change in CHANGES),
        way("none-of-them", *CHANGES),
    ],
    options={"size": ("gpt2",), "precision": ("bfloat16",), "seconds": (3.0,)},
    quick={"size": ("tiny",), "precision": ("float32",), "seconds": (0.05,)},
    choices={"size": tuple(SIZES)},
    compared="tokens_per_second",
    reference="none-of-them",
    columns={
        "tokens_per_second": "tokens/s",
        "of_peak": "of the peak",
        "first_step_seconds": "first step, s",
        "device_memory_bytes": "of the device, MB",
    },
    rounds=3,
)
