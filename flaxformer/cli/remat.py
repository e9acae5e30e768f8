"""Table of the rematerialisations of a run, for `plan --remat` and `train --plan --remat`."""

import dataclasses

import jax
import jax.numpy as jnp

from flaxformer.core.paths import replace_at
from flaxformer.model.remat import REMATS
from flaxformer.report.table import Table
from flaxformer.tasks.batch import batch_shapes
from flaxformer.training import Run, start, train_step


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step: on the device, and in the host's memory for it."""

    device: int
    host: int


def memory_by_remat(run: Run) -> dict[str, StepMemory]:
    """Return the memory of a training step of the run on the default device, for each name in `REMATS`.

    The step is compiled for each, and not run. Empty where the compiler does not tell.
    """
    memories = {}
    for name in REMATS:
        arrays = jax.tree.map(jnp.asarray, replace_at(run, {"training.remat": name}))
        batch = batch_shapes(arrays.task.load())
        step = jax.jit(train_step).lower(jax.eval_shape(start, arrays), arrays, batch).compile()
        if (memory := step.memory_analysis()) is not None:
            memories[name] = StepMemory(
                memory.argument_size_in_bytes + memory.temp_size_in_bytes,
                memory.host_argument_size_in_bytes + memory.host_temp_size_in_bytes,
            )
    return memories


def remat_table(run: Run) -> Table:
    """A row per rematerialisation: what it stores, and the memory of a training step."""
    rows = [
        [name, REMATS[name].stored, f"{memory.device / 1e6:,.1f}", f"{memory.host / 1e6:,.1f}"]
        for name, memory in memory_by_remat(run).items()
    ]
    return Table("", ["training.remat", "stored activations", "MB /run", "MB on the host"], rows, 2)
