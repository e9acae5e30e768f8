"""Formulations that are faster on a GPU: training as it is, and without each row of the tables of `nn.formulations`.

Command: flaxformer bench formulations size=gpt2
Ways: `as-it-is`; one way per row for GPUs, named after its function and itself; small chunks; `none`.
On a CPU, only the chunks of logits are used, so the other ways compile the same program.
Cost: per round, one process of 30 s per way.
"""

import functools
from collections.abc import Callable
from typing import Any

from sizes import SIZES, size_of

from flaxformer.bench import Benchmark, Way, Work
from flaxformer.nn.formulations import FUNCTIONS, Formulation, chunks
from flaxformer.training import compiled_run  # imports all functions that have formulations

assert compiled_run
Table = dict[str, Formulation]
ROWS = [
    (own.formulations, name, f"without-{own.name}-{name}".replace(" ", "-"))
    for own in FUNCTIONS.values()
    for name, row in own.formulations.items()
    if "gpu" in row.platforms and own.name not in ("attention", "attention to a cache", "lookup")
]
"""Rows for GPUs, each as its table, its name and the name of its way; `bench kernels` has those of attention."""


def remove(table: Table, name: str) -> None:
    """Remove a row, so that the next one, or the equation, takes its place."""
    del table[name]


def small_chunks_of_logits() -> None:
    """Half as many logits per chunk."""
    chunks.LARGE //= 2


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
        *(way(label, functools.partial(remove, table, name)) for table, name, label in ROWS),
        way("small-chunks-of-logits", small_chunks_of_logits),
        way("none", *(functools.partial(remove, table, name) for table, name, _ in ROWS)),
    ],
    options={"size": ("gpt2",), "precision": ("bfloat16",), "seconds": (3.0,)},
    quick={"size": ("tiny",), "precision": ("float32",), "seconds": (0.05,)},
    choices={"size": tuple(SIZES)},
    compared="tokens_per_second",
    reference="none",
    columns={
        "tokens_per_second": "tokens/s",
        "of_peak": "of the peak",
        "first_step_seconds": "first step, s",
        "device_memory_bytes": "of the device, MB",
    },
    rounds=3,
)
