"""Cost of a program: parameters, FLOPs, bytes, and seconds, measured on its compiled training step."""

import dataclasses
import math
import time
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.core import params
from flaxformer.nn.formulations import describe_choices, recording
from flaxformer.study.program_groups import ProgramGroup
from flaxformer.tasks.batch import first_batch
from flaxformer.training import Run, start, train_step
from flaxformer.training.flops import flops_per_step
from flaxformer.training.memory import excess, machine_bytes, needed_bytes, parameters
from flaxformer.training.micro_batches import micro_batches
from flaxformer.training.offload import to_host


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a group: FLOPs by `training.flops`, all else measured on its compiled training step.

    Of a group that does not fit into memory, only the numbers of parameters and bytes are known.
    """

    parameters: int
    flops_per_step: float
    bytes_per_member: int
    seconds_per_step: float
    compile_seconds: float
    compiled_flops: float = 0.0
    """FLOPs of the compiled step as XLA counts them, with elementwise operations; 0 where it does not count them."""
    excess: str = ""
    """The memory that it needs and that there is, if it does not fit; it is not timed then."""
    formulations: str = ""
    """The formulations of its functions (`nn.formulations`), in words."""

    def seconds(self, group: ProgramGroup, devices: int) -> float:
        """Return the estimated seconds of the group on so many devices."""
        work = self.seconds_per_step * group.steps * len(group.trials)
        return self.compile_seconds + work / min(devices, len(group.trials))


def cost(group: ProgramGroup) -> Cost:
    """Return the cost of a group, measured on its first trial."""
    return cost_of_run(group.example)


def cost_of_run(run: Run, timed_steps: int = 5) -> Cost:
    """Compile one training step and time it on a random state, which needs no compiled initialization."""
    if too_much := excess(run):
        return Cost(parameters(run.model), 0.0, sum(needed_bytes(run).values()), math.nan, math.nan, excess=too_much)
    run = jax.tree.map(jnp.asarray, run.without_init)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), jax.eval_shape(start, run))
    batch = first_batch(run.task.load())
    begin = time.perf_counter()
    with recording() as choices:
        step = jax.jit(train_step).lower(shapes, run, batch).compile()
    compiled = time.perf_counter()
    memory, analysis = step.memory_analysis(), step.cost_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes if memory else 0
    counted = float((analysis or {}).get("flops", 0)) * micro_batches(run)  # a scan's body is counted once
    count = params.count(model.specs(run.model))
    if used > machine_bytes():
        too_much = f"needs {used / 1e9:,.1f} GB of memory and there are {machine_bytes() / 1e9:,.1f} GB"
        return Cost(count, flops_per_step(run), used, math.nan, compiled - begin, counted, too_much)
    state = jax.tree.map(_noise, shapes)
    state, _ = step(state.replace(optimizer=to_host(run, state.optimizer)), run, batch)
    jax.block_until_ready(state)
    warm = time.perf_counter()
    for _ in range(timed_steps):
        state, _ = step(state, run, batch)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - warm) / timed_steps
    formulations = describe_choices(choices)
    return Cost(count, flops_per_step(run), used, seconds, compiled - begin, counted, formulations=formulations)


def _noise(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    """Return numbers from 0 to 0.02 in the shape of a leaf; some devices multiply zeros faster."""
    return np.resize(0.02 * np.random.default_rng(0).random(2**16, np.float32), leaf.shape).astype(leaf.dtype)


def slow_decoding(models: Iterable[ModelConfig]) -> list[str]:
    """Return a warning per token mixer without a decoding state, which reads the whole prefix again for each token."""
    mixers = [pair for model in models for pair in model.mixers_without_state.items()]
    names = dict.fromkeys(f"model.{path} {type(mixer).__name__}" for path, mixer in mixers)
    return [f"decoding is slow with {name}: it has no decoding state and reads all tokens again" for name in names]
