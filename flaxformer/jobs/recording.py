"""Recording of a job: its events in the log and in trackers, with the work of the run and the wall time."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence

import jax

from flaxformer.core.canonical import canonical
from flaxformer.devices import distributed
from flaxformer.devices.sharding import Devices
from flaxformer.jobs.extension import Extension
from flaxformer.jobs.goodput import WallTime
from flaxformer.jobs.job import Job
from flaxformer.jobs.log import Log
from flaxformer.jobs.peak import model_flops, peak_of
from flaxformer.jobs.trackers.attached import AttachedTracker
from flaxformer.jobs.trackers.choose import trackers_of
from flaxformer.jobs.trackers.tracker import TrackedRun
from flaxformer.runner.events import Event, Progressed
from flaxformer.system.digests import JsonObject
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
                log.write({"kind": "launch", "step": step, "lost": log.lost, **work, **data})
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
