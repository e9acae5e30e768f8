"""Recording of a job: its events as lines of the log and in trackers, with the work of the run and the wall time."""

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from flaxformer.core.canonical import canonical
from flaxformer.devices import distributed
from flaxformer.devices.sharding import Devices
from flaxformer.jobs.extension import Extension
from flaxformer.jobs.goodput import WallTime
from flaxformer.jobs.job import Job
from flaxformer.jobs.peak import model_flops, peak_of
from flaxformer.jobs.trackers.attached import AttachedTracker
from flaxformer.jobs.trackers.choose import trackers_of
from flaxformer.jobs.trackers.tracker import TrackedRun
from flaxformer.runner.events import Evaluated, Event, Progressed, Sampled
from flaxformer.store.job_log import NAME, LogLine, sound_lines, wall_seconds
from flaxformer.store.provenance import command
from flaxformer.system import digests
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError
from flaxformer.system.files import set_aside, write_atomically
from flaxformer.tasks.about import data_notes
from flaxformer.training import Run
from flaxformer.training.device_group import default_devices
from flaxformer.training.memory import parameters

LOG = logging.getLogger(__name__)


def work_of(run: Run, devices: Devices | None) -> JsonObject:
    """Return the size of a run's model, its work per step, and the devices that do it."""
    return {
        "parameters": parameters(run.model),
        "flops_per_step": model_flops(run),
        "tokens_per_step": run.tokens_per_step,
        "device": jax.devices()[0].device_kind,
        "devices": 1 if devices is None else devices.count,
        "peak": peak_of(run, devices),
    }


def record(
    events: Iterator[Event],
    run: Run,
    job: Job,
    step: int,
    extensions: Sequence[Extension] = (),
    wall_time: WallTime | None = None,
) -> Iterator[Event]:
    """Pass events on, and write them to the run's log and to its trackers in the first process."""
    with contextlib.ExitStack() as opened:
        log: Log | None = None
        if distributed.is_coordinator():
            tracked = TrackedRun(
                folder=job.output, name=job.output.absolute().name, config=canonical(run), seed=run.seed
            )
            created = trackers_of(job.track, job.file).items()
            attached = [AttachedTracker(name, create, tracked, LOG.warning) for name, create in created]
            for tracker in attached:
                opened.callback(tracker.close)
            log = Log(job.output, step, attached)
            for extension in extensions:
                log.write({"kind": "extension", "step": step, **dataclasses.asdict(extension)})
            if step < run.training.steps:
                work = work_of(run, job.devices or default_devices(run))
                data = {"data": run.task.fingerprint(), "data_notes": data_notes(run.task)}
                origin = {"lost": log.lost, "command": command(sys.argv)}
                log.write({"kind": "launch", "step": step, **origin, **work, **data})
        wall_time = WallTime() if wall_time is None else wall_time
        wall_time.spend("starting")
        first = step
        for event in events:
            wall_time.add(event)
            step = event.step if isinstance(event, Progressed) else step
            if log is not None:
                log.record(event, wall_time.fields)
            yield event
        wall_time.spend("saving")
        if log is not None and step > first:
            log.write({"kind": "time", "step": step, **wall_time.fields, **wall_time.seconds})


class Log:
    """The log in a run's folder, from a step on: lines that an earlier launch wrote after that step are dropped.

    `store.job_log` has the form of a line. Each of `trackers` is called with every line, beginning with those that are
    kept. A damaged file is kept as log.jsonl.damaged and reported; its other lines stay, and steps that are missing are
    reported.

    Raises:
      UserError: the file cannot be read or written, as on a full disk; a line is then written whole or not at all.
    """

    def __init__(self, folder: Path, step: int, trackers: Sequence[Callable[[LogLine], object]] = ()) -> None:
        self.path, self.trackers = folder / NAME, trackers
        lines, wrong = sound_lines(self.path) if step else ([], [])
        kept = [line for line in lines if line["step"] <= step]
        self.lost = wall_seconds(lines) - wall_seconds(kept)
        """Seconds of earlier launches whose lines are dropped."""
        with _recording(self.path):
            if wrong:
                kept_as = set_aside(self.path, "damaged").name
                LOG.warning("%s, %s; it is kept as %s, and its other lines stay", self.path, wrong[0], kept_as)
            if missing := _missing_steps(kept, step):
                LOG.warning("%s lacks %s of the %d steps that were trained, from step %d on", self.path, *missing)
            write_atomically(self.path, b"".join(map(digests.line, kept)))
        for line in kept if trackers else ():
            self._write_to_trackers(line)

    def record(self, event: Event, wall_time: JsonObject | None = None) -> None:
        """Add the line of an event, if it has one, for steps with `wall_time`; it is on the disk when this returns."""
        if line := line_of(event):
            self.write(line | (wall_time or {}) if line["kind"] == "steps" else line)

    def write(self, line: LogLine) -> None:
        """Add a line; it is on the disk when this returns."""
        with _recording(self.path):
            digests.append_line(self.path, line)
        self._write_to_trackers(line)

    def _write_to_trackers(self, line: LogLine) -> None:
        for tracker in self.trackers:
            tracker(line)


def line_of(event: Event) -> LogLine | None:
    """Return the line of an event; None for an event that the log does not have."""
    match event:
        case Progressed(step=step, seconds=seconds, curves=curves):
            return {"kind": "steps", "step": step, "seconds": seconds, **curves}
        case Evaluated(step, metrics, is_test):
            return {"kind": "test" if is_test else "evaluation", "step": step, **metrics}
        case Sampled(step, prompt, text):
            return {"kind": "sample", "step": step, "prompt": prompt, "text": text}
    return None


@contextlib.contextmanager
def _recording(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        raise UserError(f"{why}; the checkpoints are kept, and the same command resumes from the newest") from error


def _missing_steps(lines: Sequence[LogLine], step: int) -> tuple[int, int, int] | None:
    """Return the number of steps up to `step` without a line, `step`, and the first of them; None if all have one."""
    chunks = [(line["step"], len(line.get("loss", ()))) for line in lines if line["kind"] == "steps"]
    logged = {n for last, steps in chunks for n in range(last - steps + 1, last + 1)}
    missing = [n for n in range(1, step + 1) if n not in logged]
    return (len(missing), step, missing[0]) if missing else None
