"""A single run: chunks of compiled steps, and between them evaluation, log and checkpoint."""

import contextlib
import dataclasses
import functools
import logging
import os
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import jax

from flaxformer.checkpoint import Checkpoints, Stop, write_config
from flaxformer.checkpoint.config import NAME as CONFIG
from flaxformer.checkpoint.config import check_config, supersede
from flaxformer.core.canonical import classes_in
from flaxformer.core.paths import replace_at
from flaxformer.devices import distributed
from flaxformer.devices.sharding import Devices
from flaxformer.jobs import trackers
from flaxformer.jobs.extension import STEPS, Extension, apply, extension_of
from flaxformer.jobs.log import Log
from flaxformer.jobs.peak import model_flops, peak, steps_per_second
from flaxformer.jobs.samples import Sampler, sampler
from flaxformer.model.layout import Layout
from flaxformer.nn.formulations import FormulationSetting, using
from flaxformer.runner.events import (
    Compiled,
    Diverged,
    Evaluated,
    Event,
    FirstLoss,
    Message,
    Progressed,
    Sampled,
    Started,
)
from flaxformer.store.job_log import NAME as LOG_NAME
from flaxformer.study import initial_weights
from flaxformer.study.tracing import trace
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError
from flaxformer.system.files import lock_folder
from flaxformer.system.links import DEEPEST, check_not_dangling, check_places, output_folder
from flaxformer.system.user_code import code_digests, copy_sources, path_of_copy, read_records, user_modules
from flaxformer.system.user_code.changes import OnCodeChange
from flaxformer.training import Run, TrainState, start
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import USABLE_MEMORY, DeviceGroup, default_devices
from flaxformer.training.initial_weights import InitialWeights
from flaxformer.training.loop import chunk_steps, train_chunks
from flaxformer.training.memory import check_memory, machine_bytes, parameters
from flaxformer.training.micro_batches import check_batch
from flaxformer.training.run_functions import RunMetrics
from flaxformer.training.step import ALIVE

LOG = logging.getLogger(__name__)
LARGEST, MOST_SAMPLES = 2**31 - 1, 100_000
FILES, FOLDERS = [CONFIG, LOG_NAME], {"code": DEEPEST, "reads": DEEPEST, "superseded": 1, "tensorboard": 0, "wandb": 0}
"""Places in a job's folder where no symbolic link may be, beside its steps (`flaxformer.system.links`)."""
MOST_CHUNK_STEPS = 50
LEAST = {"chunk_steps": 1, "save_every": 1, "keep_last": 1, "keep_best": 0, "samples": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of training and saving a run, none of which changes its numbers, except `formulations` the last bits.

    Args:
      output: its folder.
      chunk_steps: steps per call of the compiled function, between which progress is reported and signals are obeyed;
        by default about a second of work (`jobs.peak.steps_per_second`), at most 50; rounded down to a divisor of both
        intervals.
      save_every: steps between two checkpoints; by default as many as between two evaluations.
      keep_last, keep_best: number of the newest and of the best checkpoints that are kept.
      formulations: "auto", or "reference" for the equations alone (`nn.formulations`).
      layout: layers unrolled (fast), scanned (compiles in constant time), or auto (by depth).
      samples: tokens that a model of text generates at each evaluation; 0 for none.
      track: services that receive the log besides its file: "tensorboard", "wandb".
      devices: the mesh that the job is trained on; None for `default_devices`.
      file: the file that declares the run; its code is part of the run's identity.
      on_code_change: what to do if user code has changed since the folder's checkpoints were made: "refuse" to
        train, "keep" them and resume, or "retrain", which sets them aside and starts again.
      restart: start again from the first step, and move what the folder holds to its superseded/N.
      extend: go on from the newest checkpoint of a shorter run also where its learning rates are not those of this run
        (`jobs.extension`).
    """

    output: Path
    chunk_steps: int | None = None
    save_every: int | None = None
    keep_last: int = 2
    keep_best: int = 1
    formulations: FormulationSetting = "auto"
    layout: Layout = "auto"
    samples: int = 64
    track: tuple[str, ...] = ()
    devices: Devices | None = None
    file: Path | None = None
    on_code_change: OnCodeChange = "refuse"
    restart: bool = False
    extend: bool = False

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            most = MOST_SAMPLES if name == "samples" else LARGEST
            if value is not None and not least <= value <= most:
                raise UserError(f"{name} is {value}; expected at least {least} and at most {most:,}")
        trackers.check(self.track)
        using(self.formulations)


def check(run: Run, job: Job) -> Extension | None:
    """Check, before anything is computed, that the folder is this run's or unused, and that the devices exist.

    Returns:
      The extension by which a shorter run of the folder becomes this one; None for any other folder.

    Raises:
      UserError: the folder holds another run, and the message lists the differences; it cannot be written to; or the
        devices are too few, or do not divide the batch; or a file or folder in it is a symbolic link.
    """
    check_places(output_folder(job.output), FILES, FOLDERS)
    check_not_dangling(job.output)
    there = next(path for path in (job.output, *job.output.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        kind = "cannot be written to" if there.is_dir() else "is a file"
        raise UserError(f"output is '{job.output}', and '{there}' {kind}; expected a folder, there or to be made")
    extension = None
    if (job.output / CONFIG).exists() and not job.restart:
        extension = extension_of(job.output, run, job.extend)
        former = run if extension is None else replace_at(run, {STEPS: extension.before})
        check_config(job.output, former, _code(run, job), job.on_code_change, _initial_weights(run, job), job.file)
    else:
        initial_weights.digest(run)
    trace(run, "the run")
    if job.devices is not None:
        job.devices.mesh()
        check_batch(run, job.devices)
    return extension


def _newest_step(checkpoints: Checkpoints) -> int | None:
    """Return the step of the checkpoint to resume from; None in a folder that never had one.

    Raises:
      UserError: every checkpoint is damaged, as far as their markers show.
    """
    if steps := checkpoints.steps():
        return steps[-1]
    if damaged := checkpoints.damaged_steps():
        raise UserError(
            f"{checkpoints.folder} holds damaged checkpoints alone ({', '.join(damaged)}); restore one from a copy, or "
            "train again from the first step with --restart, which moves them and the log to superseded/"
        )
    return None


def _initial_weights(run: Run, job: Job) -> str | None:
    """The digest of the weights that a run starts from; None if it draws all, or is resumed and they are not there."""
    is_resumed = bool(Checkpoints(job.output).steps()) and not job.restart
    if run.init is None or (is_resumed and not Path(run.init.path).expanduser().exists()):
        return None
    return initial_weights.digest(run)


def _code(run: Run, job: Job) -> dict[str, str]:
    """Digests of the user code that the run uses."""
    return code_digests(classes_in(run), job.file)


def train(run: Run, job: Job, stop: Stop) -> Iterator[Event]:
    """Train a run to its last step, or until `stop` is set, from its newest checkpoint if it has one.

    A run that was stopped or killed and is resumed equals the uninterrupted one bit for bit on the same devices:
    batches and dropout are functions of (seed, step), and the state holds the rest. When `stop` is set, it finishes its
    chunk and saves; before the first step, it ends at once. A run whose loss is no longer finite ends there.

    With several processes, all train, and only the first reads and writes the folder and samples.

    Raises:
      UserError: another process trains in the folder, it holds another run, or a checkpoint could not be saved; or the
        run needs more memory than there is.
    """
    code, modules, declared = _code(run, job), user_modules(job.file), run
    extensions: list[Extension] = []
    with contextlib.ExitStack() as held:
        starting = held.enter_context(stop.raise_on_signals(jax.process_count() == 1))

        def claim() -> bool:
            check(run, job)
            check_memory(run)
            held.enter_context(lock_folder(job.output, "training"))
            if job.restart:
                supersede(job.output)
            elif (extension := extension_of(job.output, run, job.extend)) is not None:
                apply(extension, job.output, run)
                extensions.append(extension)
            return not (job.output / CONFIG).exists()

        def declare() -> None:
            code_copy = path_of_copy(copy_sources(job.output / "code", modules), job.file)
            about = code_copy, _initial_weights(declared, job), job.file
            write_config(job.output, declared, code, job.on_code_change, *about)
            held.enter_context(read_records.recording(job.output, job.file))

        is_new = distributed.run_on_coordinator(claim)
        if not is_new:
            distributed.run_on_coordinator(declare)
        with using(job.formulations):
            devices = job.devices or default_devices(run)
        if devices is not None:
            check_batch(run, devices)
        for extension in extensions:
            yield Message(f"{job.output} is {extension}")
        checkpoints = Checkpoints(job.output, keep_last=job.keep_last, keep_best=job.keep_best)
        newest = distributed.run_on_coordinator(lambda: _newest_step(checkpoints))
        if newest == run.training.steps and checkpoints.restore(jax.eval_shape(start, run.without_init))[0] == newest:
            yield Started(newest)
            yield from record(iter(()), run, job, newest)
            return
        device_group = DeviceGroup.of(devices, job.formulations)
        initial = None if newest is not None else device_group.device_put(initial_weights.read(run))
        run = run.without_init
        compiled = CompiledRun(run, device_group, job.layout)
        step, state = (0, None) if newest is None else checkpoints.restore(compiled.start(run, initial))
        yield Started(step)
        if step < run.training.steps:
            began = time.perf_counter()
            compiled.compile(run, steps_per_call(run, job, device_group), initial, evaluations_later=True)
            yield Compiled("", str(device_group), time.perf_counter() - began, compiled.bytes)
        state = compiled.start(run, initial) if state is None else state
        if is_new:  # a run that does not compile leaves its folder to another one
            distributed.run_on_coordinator(declare)
        starting.close()
        try:
            steps = _steps(run, compiled, job, stop, checkpoints, state, step, initial)
            del state, initial  # of which `_steps` keeps no longer than it needs
            yield from record(steps, run, job, step, extensions)
            distributed.run_on_coordinator(checkpoints.wait)
        finally:
            checkpoints.wait()


def steps_per_call(run: Run, job: Job, device_group: DeviceGroup) -> int:
    """Steps per call of the compiled function."""
    interval = run.training.interval
    most = job.chunk_steps or max(1, int(min(MOST_CHUNK_STEPS, steps_per_second(run, device_group.devices))))
    return chunk_steps(most, interval, job.save_every or interval)


def _steps(
    run: Run,
    compiled: CompiledRun,
    job: Job,
    stop: Stop,
    checkpoints: Checkpoints,
    state: TrainState,
    step: int,
    initial: InitialWeights | None,
) -> Iterator[Event]:
    """Train from a state on, chunk by chunk, with evaluations and checkpoints between chunks.

    The initial state is evaluated after the first chunk, if memory has room for it then, so that the first loss is
    shown while evaluation is still being compiled. A run of one step, which is a trial of the setup, is not evaluated
    unless it asks for it by `evaluate_every`.
    """
    steps, interval, saves = run.training.steps, run.training.interval, job.save_every or run.training.interval
    evaluate = functools.partial(_evaluate, run, compiled, sampler(run, run.task.load(), job.samples))
    is_evaluated = steps > 1 or run.training.evaluate_every is not None
    is_initial_due = step == 0 and is_evaluated
    if is_initial_due and not _has_room_for_another(state, compiled):
        yield from evaluate(state, step)
        is_initial_due = False
    for chunk in train_chunks(compiled, run, state, step, steps, steps_per_call(run, job, compiled.device_group)):
        state, step = chunk.state, chunk.step
        curves = {name: [float(x) for x in numbers] for name, numbers in chunk.curves.items()}
        if step == chunk.steps:
            yield FirstLoss(1, curves["loss"][0])
        if is_initial_due:
            yield from evaluate(compiled.start(run, initial), 0)
            is_initial_due, initial = False, None
        yield Progressed("", 1, chunk.steps, chunk.steps * run.tokens_per_step, step, chunk.seconds, curves)
        metrics = (yield from evaluate(state, step)) if is_evaluated and step % interval == 0 else {}
        diverged_at = int(state.diverged_at)
        is_trained = step == steps and diverged_at == ALIVE
        if is_evaluated and is_trained and (scores := _numbers(compiled.test(state, run))):
            yield Evaluated(step, scores, is_test=True)
        if asked := distributed.all_reduce_max(stop.by or 0):
            stop.by = signal.Signals(asked)
        if step % saves == 0 or asked or step == steps:
            checkpoints.save(step, state, metrics)
        if diverged_at != ALIVE:
            yield Diverged(diverged_at)
        if asked or diverged_at != ALIVE:
            return


def _evaluate(
    run: Run, compiled: CompiledRun, sample: Sampler | None, state: TrainState, step: int
) -> Generator[Event, None, dict[str, float]]:
    """Evaluate, and generate a sample for a task of text; return the metrics."""
    metrics = _numbers(compiled.evaluate(state, run))
    yield Evaluated(step, metrics)
    if sample is not None:
        params = compiled.evaluation_params(state, run)  # every process takes part in gathering them
        if distributed.is_coordinator():
            with using(compiled.device_group.formulations):  # without the mesh: the weights are on one device
                text = sample(params, step)
            yield Sampled(step, *text)
    return metrics


def _has_room_for_another(state: TrainState, compiled: CompiledRun) -> bool:
    """True if the devices can hold a second state beside the training."""
    another = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    memory = min(compiled.device_group.memory, USABLE_MEMORY * machine_bytes())
    return jax.process_count() == 1 and compiled.bytes + another <= memory


def _numbers(metrics: RunMetrics) -> dict[str, float]:
    return {name: float(x) for name, x in jax.device_get(metrics).items()}


def work_of(run: Run, devices: Devices | None) -> JsonObject:
    """Return the size of a run's model, its work per step, and the devices that do it."""
    kind, count = jax.devices()[0].device_kind, 1 if devices is None else devices.count
    device_peak = peak(kind, run.training.precision)
    return {
        "parameters": parameters(run.model),
        "flops_per_step": model_flops(run),
        "tokens_per_step": run.tokens_per_step,
        "device": kind,
        "devices": count,
        "peak": None if device_peak is None else device_peak * count,
    }


def record(
    events: Iterator[Event], run: Run, job: Job, step: int, extensions: Sequence[Extension] = ()
) -> Iterator[Event]:
    """Pass events on, and write them to the run's log and to its trackers in the first process."""
    with contextlib.ExitStack() as opened:
        log: Log | None = None
        if distributed.is_coordinator():
            attached = [trackers.Tracker(name, job.output, run, LOG.warning) for name in job.track]
            for tracker in attached:
                opened.callback(tracker.close)
            log = Log(job.output, step, attached)
            for extension in extensions:
                log.write({"kind": "extension", "step": step, **dataclasses.asdict(extension)})
            if step < run.training.steps:
                log.write({"kind": "launch", "step": step, **work_of(run, job.devices or default_devices(run))})
        for event in events:
            if log is not None:
                log.record(event)
            yield event
