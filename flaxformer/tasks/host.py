"""Data that stay in host memory: batches are gathered there, and copied to the device in chunks ahead of use.

The batches of a `HostSource` are pure functions of (key, step), as those of every source, but compiled functions cannot
call it. They take a `Chunk` instead, a source with the batches of some steps:

>>> gather = functools.partial(gather_batches, host_source, key)
>>> for chunk, steps in prefetch(gather, first=0, last=1000, steps=50):
...     state, metrics = train_chunk(state, run, chunk, steps)

A thread gathers the next chunk while the device processes the current one. There is no iterator state to save: a
resumed run starts at another `first`.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from flaxformer.core.pytree import Node
from flaxformer.core.struct import Config
from flaxformer.system.errors import UserError
from flaxformer.tasks.batch import Batch, Source


class HostSource(Source):
    """Base of sources whose batches are NumPy arrays."""

    @property
    def on_host(self) -> bool:
        return True

    def check_not_traced(self, name: str, key: Array, step: int | Int[Array, ""]) -> None:
        """Refuse a call of `batch` inside a compiled function.

        Args:
          name: of the task, for the message.

        Raises:
          UserError: the key or the step is traced.
        """
        if isinstance(step, jax.core.Tracer) or isinstance(key, jax.core.Tracer):
            raise UserError(
                f"{name}: the data stay on the host, where compiled functions cannot read them; expected `batch` to be "
                "called outside of them"
            )


class RepeatedNumber(Node):
    """Array of one number, such as the weights of targets that are all scored, which programs see as a constant.

    They do so for data on the device too, and would otherwise round their sums differently.
    """

    number: float = flax.struct.field(pytree_node=False)
    shape: tuple[int, ...] = flax.struct.field(pytree_node=False)
    dtype: str = flax.struct.field(pytree_node=False)


class Chunk(Source):
    """Batches [steps, ...] of consecutive steps from `first` on; of a stack of runs, both have a leading axis.

    Arrays of a batch that repeat one number may be a `RepeatedNumber`, without the leading axes.
    """

    first: Int[Array | np.ndarray, "..."]
    batches: Batch

    @property
    def is_stacked(self) -> bool:
        return np.ndim(self.first) > 0

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        """Return the batch of a step of this chunk; the key was applied when the chunk was made."""

        def read(leaf: Array | RepeatedNumber) -> Array:
            if isinstance(leaf, RepeatedNumber):
                return jnp.full(leaf.shape, leaf.number, leaf.dtype)
            return leaf[step - self.first]

        return jax.tree.map(read, self.batches, is_leaf=lambda leaf: isinstance(leaf, RepeatedNumber))


Gather = Callable[[int, int], Batch]
"""Function that returns the host batches [steps, B, ...] of so many steps (second) from one on (first)."""
Place = Callable[[Chunk], Chunk]
"""Function that copies a chunk to the devices."""


def gather_batches(source: Source, key: Array, first: int, steps: int) -> Batch:
    """Return the batches [steps, B, ...] of a source on the host, from step `first` on.

    Random numbers are drawn on the CPU, if JAX has one, so that they do not wait for the device's queue.
    """
    with jax.default_device(_cpu()):
        key = jax.device_put(key, _cpu())
        batches = [source.batch(key, step) for step in range(first, first + steps)]
        return jax.tree.map(_stack, *batches)


def _stack(*leaves: Array | np.ndarray) -> np.ndarray | RepeatedNumber:
    """Return arrays with a leading axis for them; of views of one number (`numpy.broadcast_to`), a constant."""
    first = leaves[0]
    if isinstance(first, np.ndarray) and first.size > 1 and not any(first.strides):
        return RepeatedNumber(first.flat[0].item(), first.shape, first.dtype.name)
    return np.stack(leaves)


def gather_stack(source: Source, runs: Sequence[tuple[Config, Array]], first: int, steps: int) -> Batch:
    """Return the batches [runs, steps, B, ...] of stacked runs; equal data of several runs are gathered once.

    Args:
      source: the data of all runs.
      runs: the task of each run, whose numbers are on the host, and its random key.
    """
    identities = [(np.asarray(jax.random.key_data(key)).tobytes(), *jax.tree.leaves(task)) for task, key in runs]
    distinct = dict(zip(identities, runs, strict=True))
    gathered = {
        identity: gather_batches(source.with_numbers(task), key, first, steps)
        for identity, (task, key) in distinct.items()
    }
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(gathered[identity] for identity in identities))


def make_chunk(gather: Gather, first: int, steps: int, place: Place, stack_size: int | None = None) -> Chunk:
    """Return the batches of `steps` steps from `first` on, copied by `place`."""
    axes = () if stack_size is None else (stack_size,)
    return place(Chunk(first=np.full(axes, first, np.int32), batches=gather(first, steps)))


def prefetch(
    gather: Gather,
    first: int,
    last: int,
    steps: int,
    place: Place = jax.device_put,
    stack_size: int | None = None,
) -> Iterator[tuple[Chunk, int]]:
    """Yield (chunk, number of its steps) for the steps first … last − 1, and gather one chunk ahead.

    Args:
      gather: returns host batches.
      first, last: range of the steps, without `last`.
      steps: largest number of steps per chunk.
      place: function that copies a chunk to the devices.
      stack_size: number of stacked runs, for which `gather` returns batches; None for one run alone.
    """
    make = functools.partial(make_chunk, gather, place=place, stack_size=stack_size)
    sizes = [(start, min(steps, last - start)) for start in range(first, last, steps)]
    with ThreadPoolExecutor(1) as pool:
        pending: list[Future[Chunk]] = [pool.submit(make, *size) for size in sizes[:1]]
        for index, (_, count) in enumerate(sizes):
            chunk = pending.pop().result()
            if sizes[index + 1 :]:
                pending.append(pool.submit(make, *sizes[index + 1]))
            yield chunk, count


def _cpu() -> jax.Device | None:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was configured to use only the accelerator
        return None
