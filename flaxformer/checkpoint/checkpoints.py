"""Checkpoints of one run: saved in a thread, published when durable and verified; the newest and the best are kept."""

import concurrent.futures
import contextlib
import functools
import logging
import math
import operator
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import SupportsFloat, TypeVar

from jax.sharding import Sharding
from jaxtyping import PyTree

from flaxformer.checkpoint.errors import DamagedStepError, SaveError, first_line
from flaxformer.checkpoint.host_arrays import (
    HostArray,
    copy_from_host,
    copy_to_host,
    host_shardings,
    sharding_of,
)
from flaxformer.checkpoint.leaves import Leaf, describe_leaves, first_difference
from flaxformer.checkpoint.marker import NAME as MARKER
from flaxformer.checkpoint.marker import Marker
from flaxformer.checkpoint.messages import new_folder, processes_of_save, shared_folder
from flaxformer.checkpoint.saving import save_step
from flaxformer.checkpoint.steps import (
    read_arrays,
    read_marker,
    read_marker_together,
    set_step_aside,
    step_numbers,
)
from flaxformer.devices import distributed
from flaxformer.devices.distributed import ALONE, ProcessGroup
from flaxformer.system import files
from flaxformer.system.errors import UserError
from flaxformer.system.links import output_folder

LOG = logging.getLogger(__name__)
TreeT = TypeVar("TreeT")


class Checkpoints:
    """Checkpoints in a folder, which is read again by every call.

    Args:
      folder: the run's folder, created by the first save. One run may write to it at a time; any number of processes
        may read. If a run has several processes, all call `save` and `restore`. Arrays that they share are written
        and read by all of them in the first one's folder, which is on a file system that all of them see.
      keep_last: number of newest steps to keep; at least 1.
      keep_best: number of best steps by the metric to keep beside them; steps whose metric is missing or not finite are
        not among them.
      metric: name, among the metrics passed to `save`, of the one that ranks the steps.
      lower_is_better: whether a lower metric is better, as for a loss.
      report: called with one line for each problem that was handled: a failed save, a damaged step.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep_last: int = 2,
        keep_best: int = 1,
        metric: str = "validation_loss",
        lower_is_better: bool = True,
        report: Callable[[str], object] = LOG.warning,
    ) -> None:
        if keep_last < 1 or keep_best < 0:
            raise UserError(f"keep_last is {keep_last}, keep_best is {keep_best}; expected at least 1 and at least 0")
        self.folder = output_folder(Path(folder))
        self.keep_last, self.keep_best = keep_last, keep_best
        self.metric, self.lower_is_better = metric, lower_is_better
        self._report = report
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None
        self._failures: list[str] = []

    # --- writing -----------------------------------------------------------------------------------------

    def save(self, step: int, state: PyTree, metrics: Mapping[str, SupportsFloat] | None = None) -> None:
        """Copy a state to the host, and save it in the background.

        A previous save that is still in progress is waited for first. If a save fails (the disk is full, or data read
        back differ from those written), it leaves no files and removes none; the failure is reported at once and raised
        by `wait`.

        Args:
          step: a step after every published one, or the newest again with the same state.
          state: a tree of arrays.
          metrics: numbers to save with it, among them the one that ranks the steps.

        Raises:
          UserError: the folder has a later step.
        """
        step = operator.index(step)
        if step < 0:
            raise ValueError(f"step is {step}; expected at least 0")
        self.finish_save()
        distributed.run_on_coordinator(lambda: self._check_order(step))
        values = {name: float(value) for name, value in (metrics or {}).items()}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        marker, arrays = Marker(step, finite, describe_leaves(state), {}, {}), copy_to_host(state)
        if any(sharding_of(array) is not None for array in arrays.values()):
            self._start_together(marker, arrays)
        elif distributed.is_coordinator():
            self._pending = self._thread.submit(self._save, self.folder, marker, arrays, ALONE)

    def wait(self) -> None:
        """Wait for the save in progress, if there is one.

        Raises:
          SaveError: a save has failed since the last call.
        """
        self.finish_save()
        failures, self._failures = self._failures, []
        if failures:
            raise SaveError("\n".join(failures))

    def finish_save(self) -> None:
        """Wait for the save in progress, if there is one, without raising its failure."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _check_order(self, step: int) -> None:
        """Refuse a step that is earlier than the newest."""
        newest = max(self.steps(), default=-1)
        if step < newest:
            raise UserError(f"{self.folder} holds step {newest}; expected a step from there on, not {step}")

    def _start_together(self, marker: Marker, arrays: dict[str, HostArray]) -> None:
        """Start a thread in every process that saves its part of the arrays."""

        def start() -> str | None:
            try:
                return str(new_folder(self.folder.absolute()))
            except OSError as error:
                self._fail(marker.step, error)
                return None

        messages = distributed.run_on_coordinator(start)
        if messages is not None:
            self._pending = self._thread.submit(self._save_together, shared_folder(Path(messages)), marker, arrays)

    def _save_together(self, messages: Path, marker: Marker, arrays: dict[str, HostArray]) -> None:
        """Save in all processes, in the folder of the first one."""
        try:
            with processes_of_save(messages) as processes:
                self._save(messages.parent, marker, arrays, processes)
        except OSError as error:
            self._fail(marker.step, error)

    def _save(self, folder: Path, marker: Marker, arrays: dict[str, HostArray], processes: ProcessGroup) -> None:
        try:
            save_step(folder, marker, arrays, processes, self._report)
        except Exception as error:
            self._fail(marker.step, error)
            return
        try:
            if processes.index == 0:
                self._remove_old()
        except OSError as error:
            self._report(f"an old step could not be removed: {first_line(error)}")

    def _fail(self, step: int, error: Exception) -> None:
        self._failures.append(f"step {step} was not saved in {self.folder}: {first_line(error)}")
        if distributed.is_coordinator():
            self._report(self._failures[-1])

    def _remove_old(self) -> None:
        """Remove published steps that are neither among the newest nor among the best."""
        markers = self._markers()
        remaining = {*list(markers)[-self.keep_last :], *self._rank(markers)[: self.keep_best]}
        for step in markers:
            if step not in remaining:
                files.remove(self.folder / str(step), MARKER)

    # --- reading -----------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the published steps with a valid marker, in order."""
        return list(self._markers())

    def damaged_steps(self) -> list[str]:
        """Return the names of the damaged steps: those that were renamed, and those whose marker is damaged."""
        renamed = [path.name for path in self.folder.glob("*.corrupt*") if path.is_dir()]
        valid = self._markers()
        return sorted(renamed + [str(step) for step in step_numbers(self.folder, published=True) if step not in valid])

    def best(self) -> int | None:
        """Return the published step with the best metric, the first of equals; None if no step has the metric."""
        return next(iter(self._rank(self._markers())), None)

    def metrics(self, step: int) -> dict[str, float | None]:
        """Return the metrics saved with a published step; None for those that were not finite."""
        markers = self._markers()
        self._check_exists(step, markers)
        return markers[step].metrics

    def holds_weights_alone(self, step: int | None = None) -> bool:
        """Return True if a step, by default the newest, holds the weights of a model and no other training state."""
        markers = self._markers()
        marker = markers.get(max(markers, default=-1) if step is None else step)
        return marker is not None and all(name.startswith("params/") for name in marker.leaves)

    def restore(self, like: TreeT, step: int | None = None, *, partial: bool = False) -> tuple[int, TreeT]:
        """Read a step, by default the newest that matches its digests, and return it with its state.

        A step that does not match its digests is renamed to STEP.corrupt and reported; without `step`, the one before
        it is tried.

        Args:
          like: a tree of arrays or `jax.ShapeDtypeStruct`s with the structure, layout and devices of the result.
          step: one of `steps()`.
          partial: allow the checkpoint to have other leaves too, so that `{"params": ...}` reads only the weights.

        Raises:
          UserError: no step can be read; or the step is of another architecture, and the message names the first leaf
            that differs.
        """
        self.finish_save()
        expected, shardings, processes = describe_leaves(like), host_shardings(like), distributed.all_processes()
        candidates = processes.run_first(lambda: self._candidates(step))
        folder = shared_folder(self.folder) if candidates else self.folder
        problems = []
        for candidate in candidates:
            try:
                return candidate, copy_from_host(like, self._read(folder, candidate, expected, shardings, partial))
            except DamagedStepError as error:
                set_aside = functools.partial(set_step_aside, folder, candidate, error, self._report)
            problems.append(processes.run_first(set_aside))
        raise UserError("\n".join([f"{self.folder} holds no checkpoint that can be read", *problems]))

    def _candidates(self, step: int | None) -> list[int]:
        """Return the steps to restore, the first of which that is undamaged counts."""
        published = step_numbers(self.folder, published=True)
        if step is not None:
            self._check_exists(step, published)
            return [step]
        for unpublished in step_numbers(self.folder, published=False):
            if unpublished > max(published, default=-1):
                self._report(f"step {unpublished} of {self.folder} is ignored: it was never published")
        return published[::-1]

    def _check_exists(self, step: int, steps: Collection[int]) -> None:
        if step not in steps:
            listed = ", ".join(map(str, steps)) or "none"
            raise UserError(f"{self.folder} holds no step {step}; it holds: {listed}")

    def _read(
        self,
        folder: Path,
        step: int,
        expected: dict[str, Leaf],
        shardings: Mapping[str, Sharding | None],
        partial: bool,
    ) -> dict[str, HostArray]:
        processes = distributed.all_processes()
        marker = read_marker_together(folder, step, processes)
        if difference := first_difference(marker.leaves, expected, partial):
            raise UserError(f"step {step} of {self.folder} is of another architecture: {difference}")
        return read_arrays(folder, marker, shardings, processes)

    def _markers(self) -> dict[int, Marker]:
        """Return the valid markers in order of their steps."""
        markers = {}
        for step in step_numbers(self.folder, published=True):
            with contextlib.suppress(DamagedStepError):
                markers[step] = read_marker(self.folder, step)
        return markers

    def _rank(self, markers: Mapping[int, Marker]) -> list[int]:
        """Return the steps that have the metric, best first, earlier ones first among equals."""
        sign = 1 if self.lower_is_better else -1
        values = {step: marker.metrics.get(self.metric) for step, marker in markers.items()}
        ranks = {step: sign * value for step, value in values.items() if value is not None}
        return sorted(ranks, key=ranks.__getitem__)
