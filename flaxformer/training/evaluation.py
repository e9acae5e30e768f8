"""Evaluation of weights: mean loss and accuracy over fixed data, and the standard error over the examples."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.model.weights import Transformer
from flaxformer.parts.heads import LossSum
from flaxformer.tasks.base import Batch, Source
from flaxformer.training.run import Run
from flaxformer.training.split_loss import batch_sums
from flaxformer.training.step import forward

LOSS_ERROR = "loss_se"
"""Name of the standard error of the mean loss over the examples."""


def evaluate(params: Transformer, run: Run, source: Source) -> dict[str, Float[Array, ""]]:
    """Mean loss over the fixed evaluation set, without dropout or label smoothing; and accuracy, where there is one."""
    found = score(params, run, source.evaluation())
    return {f"validation_{name}": value for name, value in found.items() if name != LOSS_ERROR}


def score(params: Transformer, run: Run, batches: Batch) -> dict[str, Float[Array, ""]]:
    """Return loss, loss_se and, where there is one, accuracy of batches [batches, B, …], without dropout or smoothing.

    loss is the mean m = Σ_i s_i / Σ_i c_i of the scored targets, with the summed loss s_i of example i and its number
    c_i of scored targets. loss_se is the standard error of m for other examples of the same distribution, that of a
    ratio of means: √(n / (n − 1) · Σ_i (s_i − m c_i)²) / Σ_i c_i over the n examples with scored targets (Cochran 1977,
    section 2.11). It is NaN for a single example. Examples count as independent.
    """

    def one(batch: Batch) -> tuple[dict[str, LossSum], LossSum]:
        return batch_sums(forward(params, run, batch), run.model.head, batch)

    found, (losses, counts) = jax.lax.map(one, batches)
    sums = jax.tree.map(jnp.sum, found)
    scores = {name: total / count for name, (total, count) in sums.items()}
    n = (counts > 0).sum()
    squares = jnp.square(losses - scores["loss"] * counts).sum()
    scores[LOSS_ERROR] = jnp.sqrt(jnp.where(n > 1, n / jnp.maximum(n - 1, 1), jnp.nan) * squares) / counts.sum()
    return scores
