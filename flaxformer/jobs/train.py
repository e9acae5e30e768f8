"""A single run: chunks of compiled steps, and between them evaluation, log and checkpoint."""

import contextlib
import functools
import signal
import time
from collections.abc import Generator, Iterator

import jax

from flaxformer.checkpoint import Checkpoints, Stop
from flaxformer.checkpoint.messages import shared_folder
from flaxformer.devices import distributed
from flaxformer.devices.sharding import Devices
from flaxformer.jobs.folder import JobFolder
from flaxformer.jobs.goodput import WallTime
from flaxformer.jobs.job import Job
from flaxformer.jobs.peak import steps_per_second
from flaxformer.jobs.recording import record
from flaxformer.jobs.samples import Sampler, sampler
from flaxformer.nn.formulations import using
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
from flaxformer.runner.profiled import train_with_profile
from flaxformer.study import initial_weights
from flaxformer.system.remembered import forget
from flaxformer.system.settings import ProfiledSteps
from flaxformer.training import Run, TrainState, start
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import USABLE_MEMORY, DeviceGroup, default_devices
from flaxformer.training.initial_weights import InitialWeights
from flaxformer.training.loop import TrainedSteps, chunk_steps
from flaxformer.training.memory import machine_bytes
from flaxformer.training.micro_batches import check_batch
from flaxformer.training.offload import state_shardings
from flaxformer.training.run_functions import RunMetrics
from flaxformer.training.step import ALIVE

MOST_CHUNK_STEPS = 50


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
    wall_time = WallTime()
    with contextlib.ExitStack() as held:
        held.callback(forget)  # data may change before the next job of this process
        starting = held.enter_context(stop.raise_on_signals(jax.process_count() == 1))
        folder = JobFolder(run, job, held)
        is_new = distributed.run_on_coordinator(folder.claim)
        if not is_new:
            distributed.run_on_coordinator(folder.declare)
        with using(job.formulations):
            devices = job.devices or default_devices(run)
        device_group = DeviceGroup.of(devices, job.formulations)
        if devices is not None:
            check_batch(run, devices)
            shared_folder(job.output)  # before hours of training: checkpoints need it
        for extension in folder.extensions:
            yield Message(f"{job.output} is {extension}")
        checkpoints, newest = folder.checkpoints, distributed.run_on_coordinator(folder.newest_step)
        if newest == run.training.steps and checkpoints.restore(_shapes(run, device_group))[0] == newest:
            yield Started(newest)
            yield from record(iter(()), run, job, newest)
            return
        initial = None if newest is not None else device_group.device_put(initial_weights.read(run))
        run = run.without_init
        compiled = CompiledRun(run, device_group, job.layout)
        step, state = (0, None) if newest is None else checkpoints.restore(compiled.start(run, initial))
        yield Started(step)
        wall_time.spend("starting")
        began, size = time.perf_counter(), distributed.run_on_coordinator(lambda: steps_per_call(run, job, devices))
        compiled.compile(run, size, initial, evaluations_later=True)
        yield Compiled("", str(device_group), time.perf_counter() - began, compiled.bytes)
        state = compiled.start(run, initial) if state is None else state
        wall_time.spend("compiling")
        if is_new:  # a run that does not compile leaves its folder to another one
            distributed.run_on_coordinator(folder.declare)
        starting.close()
        try:
            steps = _steps(run, compiled, job, stop, checkpoints, state, step, size, initial)
            del state, initial  # of which `_steps` keeps no longer than it needs
            yield from record(steps, run, job, step, folder.extensions, wall_time)
            distributed.run_on_coordinator(checkpoints.wait)
        finally:
            checkpoints.wait()


def _shapes(run: Run, device_group: DeviceGroup) -> TrainState:
    """Return the shapes of a run's state, sharded over the mesh if there is one."""
    state = jax.eval_shape(start, run.without_init)
    if device_group.mesh is None:
        return state
    shardings = state_shardings(run, state, device_group.mesh)
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), state, shardings)


def steps_per_call(run: Run, job: Job, devices: Devices | None) -> int:
    """Return the number of steps per call of the compiled function."""
    interval = run.training.interval
    most = job.chunk_steps or max(1, int(min(MOST_CHUNK_STEPS, steps_per_second(run, devices))))
    return chunk_steps(most, interval, job.save_every or interval)


def _steps(
    run: Run,
    compiled: CompiledRun,
    job: Job,
    stop: Stop,
    checkpoints: Checkpoints,
    state: TrainState,
    step: int,
    size: int,
    initial: InitialWeights | None,
) -> Iterator[Event]:
    """Train from a state on, in chunks of `size` steps, with evaluations and checkpoints between chunks.

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
    profile = None if job.profile is None else ProfiledSteps.parse(job.profile)
    for chunk in train_with_profile(profile, job.output, compiled, run, state, step, steps, size):
        if not isinstance(chunk, TrainedSteps):
            yield chunk
            continue
        state, step = chunk.state, chunk.step
        curves = {name: [float(x) for x in numbers] for name, numbers in chunk.curves.items()}
        if step == chunk.steps:
            yield FirstLoss(curves["loss"][0], chunk.seconds)
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
