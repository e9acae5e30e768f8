"""The steps of one run: saved in a thread, published when they are durable and verified, kept by age and by merit."""

import concurrent.futures
import contextlib
import dataclasses
import logging
import math
import operator
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer import distributed, files
from flaxformer.checkpoint import storage
from flaxformer.checkpoint.errors import Damaged, SaveFailed, line
from flaxformer.checkpoint.leaves import Leaf, described, difference, digest, from_first, from_host, on_host
from flaxformer.checkpoint.marker import NAME as MARKER
from flaxformer.checkpoint.marker import Marker
from flaxformer.struct import UserError

LOG = logging.getLogger(__name__)
NUMBERS = "state"
MARGIN = 16 * 2**20
"""Bytes that are to stay free beside a save, and a tenth of it: metadata, logs, and the rest of the run."""


class Checkpoints:
    """The checkpoints in a folder, which is read again for every question.

    Args:
      folder: of the run; made at the first save. One run may write to it at a time, any number of processes may read.
        Of a run of several processes, all call `save` and `restore`, and the first alone reads and writes.
      keep_last: how many of the newest steps stay; at least 1.
      keep_best: how many of the best steps stay beside them, by the metric; a step without it, or for which it is not
        finite, is none of them.
      metric: the name, in what `save` is given, of what decides which is best.
      lower_is_better: whether it is a loss.
      report: is given one line for each thing that went wrong and was dealt with: a failed save, a step set aside.
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
        self.folder = Path(folder)
        self.keep_last, self.keep_best = keep_last, keep_best
        self.metric, self.lower_is_better = metric, lower_is_better
        self._report = report
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None
        self._failures: list[str] = []

    # --- writing -----------------------------------------------------------------------------------------

    def save(self, step: int, state: Any, metrics: Mapping[str, Any] | None = None) -> None:
        """Copy the state to the host, and save it while the caller goes on.

        A save that is still under way is waited for first. One that fails (no space left, a disk that gives back other
        numbers than it was given) leaves no trace and removes nothing; it is reported at once, and raised by `wait`.

        Args:
          step: later than every published one; the newest may be given again with the same numbers.
          state: a tree of arrays.
          metrics: numbers to keep with it, and to tell the best by.

        Raises:
          UserError: a step before one that the folder holds: it would be another run's past.
        """
        step = operator.index(step)
        if step < 0:
            raise ValueError(f"step is {step}; expected at least 0")
        distributed.run_on_coordinator(lambda: self._expect_later(step))
        numbers = {name: float(value) for name, value in (metrics or {}).items()}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        arrays, leaves = on_host(state), described(state)
        if distributed.is_coordinator():
            self._pending = self._thread.submit(self._save, step, leaves, arrays, finite)

    def wait(self) -> None:
        """Return when nothing is being saved.

        Raises:
          SaveFailed: a save has failed since the last call.
        """
        self._settle()
        failures, self._failures = self._failures, []
        if failures:
            raise SaveFailed("\n".join(failures))

    def _expect_later(self, step: int) -> None:
        self._settle()
        newest = max(self.steps(), default=-1)
        if step < newest:
            raise UserError(f"{self.folder} holds step {newest}; expected a step from there on, not {step}")

    def _settle(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _save(
        self, step: int, leaves: dict[str, Leaf], arrays: dict[str, np.ndarray], metrics: dict[str, float | None]
    ) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear()
            digests = {name: digest(array) for name, array in arrays.items()}
            self._publish(Marker(step, metrics, leaves, digests, {}), arrays)
        except Exception as error:
            self._failures.append(f"step {step} was not saved in {self.folder}: {line(error)}")
            self._report(self._failures[-1])
            return
        try:
            self._prune()
        except OSError as error:
            self._report(f"an old step could not be removed: {line(error)}")

    def _publish(self, marker: Marker, arrays: dict[str, np.ndarray]) -> None:
        """Write, flush, read back, compare; and only then say that the step is there."""
        target = self.folder / str(marker.step)
        if self._is_there(marker):
            return
        size = sum(array.nbytes for array in arrays.values())
        needed, free = size + size // 10 + MARGIN, files.free_bytes(self.folder)
        if free < needed:
            raise OSError(f"the disk is full: a save needs {needed:,} bytes free, {free:,} are")
        target.mkdir()
        try:
            storage.write(target / NUMBERS, {name: array for name, array in arrays.items() if array.size})
            files.flush_all(target)
            marker = dataclasses.replace(marker, files=files.contents(target / NUMBERS))
            self._verified(marker, marker.leaves)
            files.write_atomically(target / MARKER, marker.encoded())
        except BaseException:
            with contextlib.suppress(OSError):  # the next save removes what is left; what went wrong is what is told
                files.remove(target, MARKER, settle=0.5)
            raise

    def _is_there(self, marker: Marker) -> bool:
        """True if the step is published with these numbers; one that is damaged is set aside."""
        if marker.step not in self._numbered(published=True):
            return False
        try:
            held = self._marker(marker.step)
            if held.digests != marker.digests:
                raise UserError("the step is there with other numbers")
            self._verified(held, held.leaves)
        except Damaged as damage:
            self._set_aside(marker.step, damage)
            return False
        return True

    def _clear(self) -> None:
        """Remove the steps that a kill left unfinished."""
        for step in self._numbered(published=False):
            files.remove(self.folder / str(step), MARKER)
            self._report(f"removed step {step} of {self.folder}, which was never finished")

    def _prune(self) -> None:
        markers = self._markers()
        kept = {*list(markers)[-self.keep_last :], *self._ranked(markers)[: self.keep_best]}
        for step in markers:
            if step not in kept:
                files.remove(self.folder / str(step), MARKER)

    # --- reading -----------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The published steps, in order, whose markers are whole."""
        return list(self._markers())

    def best(self) -> int | None:
        """The published step with the best metric; the first of equals; None where none has one."""
        return next(iter(self._ranked(self._markers())), None)

    def metrics(self, step: int) -> dict[str, float | None]:
        """Return the metrics saved with a published step; None for those that were not finite."""
        markers = self._markers()
        self._expect(step, markers)
        return markers[step].metrics

    def restore(self, like: Any, step: int | None = None, *, whole: bool = True) -> tuple[int, Any]:
        """The newest step whose every number is as it was saved, and its state; or a given step, or nothing.

        A step that does not verify is renamed to STEP.corrupt and reported, and the one before it is tried.

        Args:
          like: a tree of arrays or `jax.ShapeDtypeStruct`s: the structure, layout and devices of the result.
          step: one of `steps`.
          whole: whether the checkpoint may hold nothing else; without, `{"params": ...}` reads the weights alone.

        Raises:
          UserError: no step that can be read; or a step of another architecture, which is left where it is: the message
            names the first leaf that differs.
        """
        arrays: dict[str, np.ndarray] = {}
        wanted = described(like)
        found = distributed.run_on_coordinator(lambda: self._newest(wanted, step, whole, arrays))
        return found, from_host(like, from_first(arrays, wanted))

    def _newest(self, wanted: dict[str, Leaf], step: int | None, whole: bool, arrays: dict[str, np.ndarray]) -> int:
        """The step to restore, whose arrays are added to `arrays`."""
        self._settle()
        there = self._numbered(published=True)
        if step is not None:
            self._expect(step, there)
        for lost in self._numbered(published=False):
            if step is None and lost > max(there, default=-1):
                self._report(f"step {lost} of {self.folder} is ignored: it was never published")
        damages = []
        for candidate in reversed(there) if step is None else [step]:
            try:
                arrays |= self._read(candidate, wanted, whole)
                return candidate
            except Damaged as damage:
                damages.append(self._set_aside(candidate, damage))
        raise UserError("\n".join([f"{self.folder} holds no checkpoint that can be read", *damages]))

    def _expect(self, step: int, there: Collection[int]) -> None:
        if step not in there:
            held = ", ".join(map(str, there)) or "none"
            raise UserError(f"{self.folder} holds no step {step}; it holds: {held}")

    def _read(self, step: int, wanted: dict[str, Leaf], whole: bool) -> dict[str, np.ndarray]:
        marker = self._marker(step)
        if unlike := difference(marker.leaves, wanted, whole):
            raise UserError(f"step {step} of {self.folder} is of another architecture: {unlike}")
        return self._verified(marker, wanted)

    def _verified(self, marker: Marker, names: Mapping[str, Leaf]) -> dict[str, np.ndarray]:
        """The arrays on disk, each of which is as the marker says."""
        folder, empty = self.folder / str(marker.step) / NUMBERS, [n for n, leaf in names.items() if 0 in leaf.shape]
        try:
            there = files.contents(folder)
            for name, wanted in marker.files.items():
                if there.get(name) != wanted:
                    raise Damaged(f"{NUMBERS}/{name} {'has changed' if name in there else 'is missing'}")
            found = storage.read(folder, [name for name in names if name not in empty])
        except (MemoryError, Damaged):
            raise
        except Exception as error:
            raise Damaged(f"it cannot be read ({line(error)})") from error
        found |= {name: np.zeros(names[name].shape, names[name].dtype) for name in empty}
        for name, leaf in names.items():
            if (found[name].shape, str(found[name].dtype)) != (leaf.shape, leaf.words):
                held = f"{found[name].dtype}{list(found[name].shape)}"
                raise Damaged(f"{name} is {held}, not {leaf.words}{list(leaf.shape)}")
            if digest(found[name]) != marker.digests[name]:
                raise Damaged(f"{name} does not match its digest")
        return found

    def _markers(self) -> dict[int, Marker]:
        """The markers that are whole, in order of their steps."""
        found = {}
        for step in self._numbered(published=True):
            with contextlib.suppress(Damaged):
                found[step] = self._marker(step)
        return found

    def _marker(self, step: int) -> Marker:
        try:
            return Marker.decoded((self.folder / str(step) / MARKER).read_bytes(), step)
        except OSError as error:
            raise Damaged(f"{MARKER} cannot be read ({error})") from None

    def _numbered(self, published: bool) -> list[int]:
        """The steps in the folder, in order, with or without a marker; links do not count."""
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        own = [path for path in paths if path.name.isdecimal() and path.name.isascii()]
        own = [path for path in own if str(int(path.name)) == path.name and path.is_dir() and not path.is_symlink()]
        return sorted(int(path.name) for path in own if (path / MARKER).exists() == published)

    def _ranked(self, markers: Mapping[int, Marker]) -> list[int]:
        """The steps that have the metric, the best first; the first of equals."""
        values = {step: marker.metrics.get(self.metric) for step, marker in markers.items()}
        sign = 1 if self.lower_is_better else -1
        return sorted((n for n, value in values.items() if value is not None), key=lambda n: sign * values[n])  # type: ignore[operator]

    def _set_aside(self, step: int, damage: Damaged) -> str:
        """Rename a step so that it no longer counts; what was wrong and what became of it, in words."""
        source, fate = self.folder / str(step), "it is being removed"
        try:
            # Without its marker, it is for another process, which has published a later step, to remove.
            if (source / MARKER).exists():
                fate = f"it is now {files.set_aside(source, 'corrupt').name}"
        except OSError as error:
            fate = f"it could not be renamed ({error})"
        message = f"step {step} of {self.folder} is corrupt: {damage}; {fate}"
        self._report(message)
        return message
