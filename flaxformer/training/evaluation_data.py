"""Data of the evaluations of a run, placed on a device group at their first use."""

from typing import Literal

import jax
from jaxtyping import PyTree

from flaxformer.tasks.batch import Batch, Source, held_out
from flaxformer.tasks.evaluations import Evaluation, EvaluationData
from flaxformer.training.device_group import DeviceGroup

HeldOutPart = Literal["evaluation", "test"]
"""Data for every evaluation, or for the one at the end."""


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
