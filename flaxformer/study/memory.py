"""Memory of a training step under each rematerialisation, by the compiler's analysis."""

import dataclasses

import jax
import jax.numpy as jnp

from flaxformer.core.struct import replace_at
from flaxformer.model.remat import REMATS
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
    found = {}
    for name in REMATS:
        own = jax.tree.map(jnp.asarray, replace_at(run, {"training.remat": name}))
        source = own.task.load()
        batch = jax.eval_shape(lambda source: source.batch(jax.random.key(0), 0), source)
        step = jax.jit(train_step).lower(jax.eval_shape(start, own), own, batch).compile()
        if (own_memory := step.memory_analysis()) is not None:
            found[name] = StepMemory(
                own_memory.argument_size_in_bytes + own_memory.temp_size_in_bytes,
                own_memory.host_argument_size_in_bytes + own_memory.host_temp_size_in_bytes,
            )
    return found
