"""Table of the rematerialisations of a run, for `plan --remat` and `train --plan --remat`."""

import jax
import jax.numpy as jnp

from flaxformer.core.paths import replace_at
from flaxformer.model.remat import REMATS
from flaxformer.report.table import Table
from flaxformer.tasks.batch import batch_shapes
from flaxformer.training import Run, start, train_step


def remat_table(run: Run) -> Table:
    """A row per rematerialisation: what it stores, and the memory of a training step on the device and on the host.

    The step is compiled for each on the default device, and not run. Empty where the compiler does not tell.
    """
    rows = []
    for name, remat in REMATS.items():
        arrays = jax.tree.map(jnp.asarray, replace_at(run, {"training.remat": name}))
        batch = batch_shapes(arrays.task.load())
        step = jax.jit(train_step).lower(jax.eval_shape(start, arrays), arrays, batch).compile()
        if (memory := step.memory_analysis()) is not None:
            device = memory.argument_size_in_bytes + memory.temp_size_in_bytes
            host = memory.host_argument_size_in_bytes + memory.host_temp_size_in_bytes
            rows.append([name, remat.stored, f"{device / 1e6:,.1f}", f"{host / 1e6:,.1f}"])
    return Table("", ["training.remat", "stored activations", "MB /run", "MB on the host"], rows, 2)
