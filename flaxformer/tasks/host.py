"""Data that stay in host memory: batches are gathered by index, and copied to the device in chunks ahead of use.

The batches of a `HostSource` are pure functions of (key, step), as those of every source, but compiled functions cannot
call it. They take a `Chunk` instead, a source with the batches of some steps:

>>> for chunk, steps in prefetch(host_source, key, first=0, last=1000, steps=50):
...     state, metrics = train_chunk(state, run, chunk, steps)

A thread gathers the next chunk while the device processes the current one. There is no iterator state to save: a
resumed run starts at another `first`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import flax.struct
import jax
import numpy as np
from jaxtyping import Array, Int

from flaxformer.data.token_files import TokenFolder
from flaxformer.system.errors import UserError
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.text import TokenTask, evaluation_starts, random_starts, test_windows, windows


class HostSource(Source):
    """Both sides of a memory-mapped text, with the same windows as `TextSource`, made by NumPy."""

    folder: TokenFolder = flax.struct.field(pytree_node=False)
    task: TokenTask = flax.struct.field(pytree_node=False)
    packed: bool = flax.struct.field(pytree_node=False, default=False)

    @property
    def on_host(self) -> bool:
        return True

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        """Return a batch of NumPy arrays.

        Raises:
          UserError: called inside a compiled function.
        """
        if isinstance(step, jax.core.Tracer) or isinstance(key, jax.core.Tracer):
            raise UserError(
                f"{type(self.task).__name__}: the text is too large for the device and stays on the host, where "
                "compiled functions cannot read it; expected a training job, which copies it in chunks"
            )
        starts = random_starts(np, key, step, self.task, self.folder.train.size)
        documents = self.folder.train_documents if self.packed else None
        return windows(np, self.folder.train, documents, starts, self.task.length)

    def evaluation(self) -> Batch:
        starts = evaluation_starts(np, self.task, self.folder.validation.size)
        documents = self.folder.validation_documents if self.packed else None
        return windows(np, self.folder.validation, documents, starts, self.task.length)

    def test(self) -> Batch | None:
        """Return the test set of `TextSource`."""
        documents = self.folder.validation_documents if self.packed else None
        return test_windows(np, self.folder.validation, documents, self.task)


class Chunk(Source):
    """Batches [steps, ...] of consecutive steps from `first` on, and the evaluation set."""

    first: int | Int[Array, ""]
    batches: Batch
    held_out: Batch

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        """Return the batch of a step of this chunk; the key was applied when the chunk was made."""
        return jax.tree.map(lambda leaf: leaf[step - self.first], self.batches)

    def evaluation(self) -> Batch:
        return self.held_out


Place = Callable[[Batch], Batch]
"""Function that copies host batches [steps, B, ...] to the devices."""


def make_chunk(source: Source, key: Array, first: int, steps: int, held_out: Batch, place: Place) -> Chunk:
    """Return the batches of `steps` steps from `first` on, copied by `place`.

    Random numbers are drawn on the CPU, if JAX has one, so that they do not wait for the device's queue.
    """
    with jax.default_device(_cpu()):
        key = jax.device_put(key, _cpu())
        batches = [source.batch(key, step) for step in range(first, first + steps)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    return Chunk(first=first, batches=place(stacked), held_out=held_out)


def prefetch(
    source: Source, key: Array, first: int, last: int, steps: int, place: Place = jax.device_put
) -> Iterator[tuple[Chunk, int]]:
    """Yield (chunk, number of its steps) for the steps first … last − 1, and gather one chunk ahead.

    Args:
      source: a source whose batches are host arrays.
      key: the random key of the data.
      first, last: range of the steps, without `last`.
      steps: largest number of steps per chunk.
      place: function that copies host batches to the devices.
    """
    held_out = place(source.evaluation())
    sizes = [(start, min(steps, last - start)) for start in range(first, last, steps)]
    with ThreadPoolExecutor(1) as pool:
        pending = [pool.submit(make_chunk, source, key, start, count, held_out, place) for start, count in sizes[:1]]
        for index, (_, count) in enumerate(sizes):
            chunk = pending.pop().result()
            if sizes[index + 1 :]:
                pending.append(pool.submit(make_chunk, source, key, *sizes[index + 1], held_out, place))
            yield chunk, count


def _cpu() -> jax.Device | None:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was configured to use only the accelerator
        return None
