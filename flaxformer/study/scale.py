"""Scale of a run: the numbers against which a scaling law is fitted."""

import functools
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from flaxformer import model, params
from flaxformer.struct import replace_at
from flaxformer.training import Run, start, train_step
from flaxformer.training.micro_batches import micro_batches

ScaleVariable = Literal["flops", "parameters", "tokens"]
VARIABLES: tuple[ScaleVariable, ...] = get_args(ScaleVariable)
VARIABLE_NAMES: dict[str, str] = {"flops": "FLOPs", "parameters": "parameters", "tokens": "tokens"}
"""Names in reports."""


def run_scale(run: Run) -> dict[str, float]:
    """Return the FLOPs of the whole training, the number of parameters, and the tokens that are read in training."""
    steps = run.training.steps
    return {
        "flops": steps * flops_per_step(run),
        "parameters": params.count(model.specs(run.model)),
        "tokens": steps * run.tokens_per_step,
    }


def flops_per_step(run: Run) -> float:
    """Return the FLOPs of one training step, as XLA counts them; the step is traced and not compiled.

    XLA counts the body of a scan once: micro-batches are multiplied here, layers under a scan are not.
    """
    return _flops(replace_at(run, {"seed": 0, "training.steps": 1, "training.evaluate_every": None}))


@functools.lru_cache(maxsize=256)
def _flops(run: Run) -> float:
    """FLOPs of the first step of a run; arms that differ in the number of steps alone are traced once."""
    arrays = jax.tree.map(jnp.asarray, run)
    source = run.task.load()
    batch = jax.eval_shape(lambda: source.batch(jax.random.key(0), 0))
    lowered = jax.jit(train_step).lower(jax.eval_shape(start, arrays), arrays, batch)
    return float((lowered.cost_analysis() or {}).get("flops", 0.0)) * micro_batches(run)
