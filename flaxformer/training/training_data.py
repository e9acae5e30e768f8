"""Data of a run, or of stacked runs, on a device group: all of them, chunks of what stays on the host, evaluations."""

import functools
import operator
from collections.abc import Iterator
from typing import Literal

import jax
from jaxtyping import Array, Int, PyTree

from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch, Source, held_out
from flaxformer.tasks.evaluations import Evaluation, EvaluationData
from flaxformer.tasks.host import Gather, gather_batches, gather_stack, make_chunk, prefetch
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.run import Run

HeldOutPart = Literal["evaluation", "test"]
"""Data for every evaluation, or for the one at the end."""


class TrainingData:
    """Data of the training steps, as compiled functions take them.

    Args:
      task: the task, whose data are loaded.
      device_group: where the data are placed.
      stack_size: number of stacked runs; None for one run without a stack axis.
    """

    def __init__(self, task: Task, device_group: DeviceGroup, stack_size: int | None) -> None:
        self.source = device_group.put_source(task.load())
        self._device_group, self._stack_size = device_group, stack_size
        self._example: Source | None = None
        """A chunk of one step, for its shapes."""

    def chunks(self, run: Run, first: int, last: int, steps: int) -> Iterator[tuple[Source, int]]:
        """Yield the data from step `first` to `last` in chunks of at most `steps`, each with its number of steps.

        Data that stay on the host are gathered one chunk ahead, while the device works on the one before.
        """
        if not self.source.on_host:
            yield from ((self.source, min(steps, last - at)) for at in range(first, last, steps))
            return
        place, size = self._device_group.put_chunk, self._stack_size
        for chunk, count in prefetch(self._gather(run), first, last, steps, place, size):
            yield self._device_group.shard_batches(chunk), count

    def at(self, run: Run, step: Int[Array, "..."]) -> Source:
        """Return data with the batch of a step, which all runs of a stack have reached."""
        if not self.source.on_host:
            return self.source
        return self._chunk(run, int(jax.device_get(step).flat[0]))

    def shapes(self, run: Run, steps: int) -> Source:
        """Return the data for so many steps, or the shapes of a chunk of them, with where its arrays will lie."""
        if not self.source.on_host:
            return self.source
        self._example = self._example or self._chunk(run, 0)
        axis = 0 if self._stack_size is None else 1

        def resize(x: Array) -> jax.ShapeDtypeStruct:
            shape = x.shape if x.ndim <= axis else (*x.shape[:axis], steps, *x.shape[axis + 1 :])
            return jax.ShapeDtypeStruct(shape, x.dtype, sharding=x.sharding)

        return jax.tree.map(resize, self._example)

    def _gather(self, run: Run) -> Gather:
        """Return the function that gathers the batches of a run, or of stacked runs, on the host."""
        run = jax.device_get(run)
        if self._stack_size is None:
            return functools.partial(gather_batches, self.source.with_numbers(run.task), run.data_key)
        runs = [jax.tree.map(operator.itemgetter(i), run) for i in range(self._stack_size)]
        return functools.partial(gather_stack, self.source, [(each.task, each.data_key) for each in runs])

    def _chunk(self, run: Run, step: int) -> Source:
        """Return the batch of a step as a chunk on the devices."""
        chunk = make_chunk(self._gather(run), step, 1, self._device_group.put_chunk, self._stack_size)
        return self._device_group.shard_batches(chunk)


class PlacedEvaluations:
    """Evaluation and test data of a task, and of named evaluations, on a device group.

    Args:
      evaluations: the named evaluations.
      device_group: where the data are placed.
    """

    def __init__(self, evaluations: tuple[Evaluation, ...], device_group: DeviceGroup) -> None:
        self._evaluations, self._device_group = evaluations, device_group
        self._batches: dict[HeldOutPart, Batch | None] = {}
        self._named: dict[HeldOutPart, dict[str, EvaluationData]] = {}

    def batches(self, source: Source, part: HeldOutPart) -> Batch | None:
        """The batches of the task, whose data are on the devices; None if it has no test set."""
        if part not in self._batches:
            with self._device_group.context():
                batches = held_out(source, lambda source: getattr(source, part)())
            # Batches that depend on no array of the source are computed on JAX's first device, or on the host.
            is_placed = self._device_group.mesh is not None and not source.on_host
            self._batches[part] = batches if is_placed or batches is None else self._device_group.put_batches(batches)
        return self._batches[part]

    def load_named(self, part: HeldOutPart) -> dict[str, EvaluationData]:
        """The data of the named evaluations that have this part, by name."""
        if part not in self._named:
            loaded = {
                evaluation.name: evaluation.load() if part == "evaluation" else evaluation.load_test()
                for evaluation in self._evaluations
            }
            put = self._device_group.put_evaluation
            self._named[part] = {name: put(data) for name, data in loaded.items() if data is not None}
        return self._named[part]


def shapes_of(tree: PyTree) -> tuple[object, ...]:
    """Structure, shapes and shardings of arrays on devices, on which a compiled program depends."""
    return jax.tree.structure(tree), *((x.shape, x.dtype, x.sharding) for x in jax.tree.leaves(tree))
