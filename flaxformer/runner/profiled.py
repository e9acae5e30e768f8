"""Training in chunks with profiled steps among them, whose costs by part of the model are read from their trace.

The times of a trace are joined with the program by its instructions.
"""

from collections.abc import Iterator
from pathlib import Path

from flaxformer.devices import distributed
from flaxformer.runner.events import Message, Profiled
from flaxformer.store.places import PROFILE
from flaxformer.system.settings import ProfiledSteps
from flaxformer.targets.devices import device_of
from flaxformer.targets.part_costs import part_costs, total_cost
from flaxformer.targets.texts import module_name
from flaxformer.targets.trace import instruction_seconds
from flaxformer.targets.traffic import kernels_of
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.flops import flops_by_scope
from flaxformer.training.loop import TrainedSteps
from flaxformer.training.profile import Trace, profiled_chunks
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState


def train_with_profile(
    profile: ProfiledSteps | None,
    output: Path | None,
    compiled: CompiledRun,
    run: Run,
    state: TrainState,
    first: int,
    last: int,
    size: int,
) -> Iterator[TrainedSteps | Profiled | Message]:
    """Train as `train_chunks` does, and yield the costs of the profiled steps after their last chunk.

    Args:
      output: folder of the study or the job, in which the first process writes the trace; None to write none.
    """
    folder = output / PROFILE if output is not None and distributed.is_coordinator() else None
    for item in profiled_chunks(profile, folder, compiled, run, state, first, last, size):
        yield profiled(item, compiled) if isinstance(item, Trace) else item


def profiled(trace: Trace, compiled: CompiledRun) -> Profiled | Message:
    """Return the costs of the steps of a trace, per device and step, of all runs of the program; or what is wrong."""
    if trace.error:
        return Message(f"there is no profile ({trace.error}); training continues")
    text, devices = compiled.programs[trace.program].as_text() or "", compiled.device_group.devices
    seconds = instruction_seconds(trace.folder, module_name(text), [device.id for device in devices])
    run, runs, kind = compiled.example, compiled.stack_size or 1, devices[0].device_kind
    costs = part_costs(
        kernels_of(text),
        seconds,
        {scope: runs * count for scope, count in flops_by_scope(run).items()},
        (trace.steps, trace.chunk),
        len(devices),
        device_of(kind),
        run.training.precision,
    )
    total = total_cost(costs, device_of(kind), run.training.precision)
    return Profiled(trace.folder, trace.first, trace.last, trace.seconds / trace.steps, tuple(costs), total, kind)
