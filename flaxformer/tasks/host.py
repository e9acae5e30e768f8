"""Data that stay on the host: batches are gathered there by index, and handed to the device in chunks, ahead of use.

A `HostSource` is a pure function of (key, step) as every source is, but one of Python: a compiled function cannot call
it. What it can be given is a `Chunk`, the batches of some steps, which is a source for these:

>>> for chunk, steps in ahead(host_source, key, first=0, last=1000, steps=50):
...     state, metrics = train_chunk(state, run, chunk, steps)

One thread gathers the next chunk while the device works on this one. No iterator has a state worth saving: to resume
is to begin at another `first`. Ten lines of random access need no library of pipelines.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flax.struct
import jax
import numpy as np
from jaxtyping import Array, Int

from flaxformer.struct import UserError
from flaxformer.tasks.base import Batch, Source
from flaxformer.tasks.text import TokenTask, evaluation_starts, random_starts, windows


class HostSource(Source):
    """Both sides of a text, memory-mapped: the same windows as on the device, by NumPy."""

    folder: Any = flax.struct.field(pytree_node=False)
    task: TokenTask = flax.struct.field(pytree_node=False)
    packed: bool = flax.struct.field(pytree_node=False, default=False)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        """A batch of NumPy arrays.

        Raises:
          UserError: asked inside a compiled function.
        """
        if isinstance(step, jax.core.Tracer) or isinstance(key, jax.core.Tracer):
            raise UserError(
                f"{type(self.task).__name__}: the text is too large for the device and stays on the host, where no "
                "compiled function can read it; expected a training job, which is handed it in chunks"
            )
        starts = random_starts(np, key, step, self.task, self.folder.train.size)
        documents = self.folder.train_documents if self.packed else None
        return windows(np, self.folder.train, documents, starts, self.task.length)

    def evaluation(self) -> Batch:
        starts = evaluation_starts(np, self.task, self.folder.validation.size)
        documents = self.folder.validation_documents if self.packed else None
        return windows(np, self.folder.validation, documents, starts, self.task.length)


class Chunk(Source):
    """The batches of the steps from `first` on, [steps, ...], and the evaluation set."""

    first: int | Int[Array, ""]
    batches: Batch
    held_out: Batch

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        """The batch of a step that is there; the key has been used."""
        return jax.tree.map(lambda leaf: leaf[step - self.first], self.batches)

    def evaluation(self) -> Batch:
        return self.held_out


Place = Callable[[Batch], Batch]
"""Brings batches of the host, [steps, B, ...], to the devices."""


def chunk(source: Source, key: Array, first: int, steps: int, held_out: Batch, place: Place) -> Chunk:
    """The batches of `steps` steps from `first` on, where `place` brings them.

    Keys are drawn on the CPU, where there is one, so that they do not queue behind the device's work.
    """
    with jax.default_device(_cpu()):
        key = jax.device_put(key, _cpu())
        batches = [source.batch(key, step) for step in range(first, first + steps)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    return Chunk(first=first, batches=place(stacked), held_out=held_out)


def prefetch(
    source: Source, key: Array, first: int, last: int, steps: int, place: Place = jax.device_put
) -> Iterator[tuple[Chunk, int]]:
    """Chunks of at most `steps` steps from `first` up to `last`, each with how many it has, gathered one ahead."""
    held_out = place(source.evaluation())
    sizes = [(at, min(steps, last - at)) for at in range(first, last, steps)]
    with ThreadPoolExecutor(1) as pool:
        following = [pool.submit(chunk, source, key, at, count, held_out, place) for at, count in sizes[:1]]
        for at, (_, count) in enumerate(sizes):
            now = following.pop().result()
            if sizes[at + 1 :]:
                following.append(pool.submit(chunk, source, key, *sizes[at + 1], held_out, place))
            yield now, count


def _cpu() -> jax.Device | None:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # told to see the accelerator alone
        return None
