"""Changes of weights after a step of the optimizer: projections, and the running mean of the weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.core.weight_projection import project_components
from flaxformer.model.weights import Transformer, stack_as, with_layout
from flaxformer.training.run import Run
from flaxformer.training.schedule import Optimizer


def after_step(params: Transformer, run: Run) -> Transformer:
    """Return the weights after `after_step` of the components and of the optimizer; untrained ones do not change."""
    changed = project_components(params, run.model)
    if type(run.optimizer).after_step is not Optimizer.after_step:
        changed = stack_as(run.optimizer.after_step(with_layout(changed, "unrolled")), params)
    if all(new is old for new, old in zip(jax.tree.leaves(changed), jax.tree.leaves(params), strict=True)):
        return params
    return jax.tree.map(
        lambda is_trained, old, new: new if is_trained else old, run.trainable.mask(params), params, changed
    )


def running_mean(
    average: Transformer | None, ema: float | Float[Array, ""] | None, step: Int[Array, ""], params: Transformer
) -> Transformer | None:
    """Return the average with the weights after step t = 1, 2 …: Σ_i ema^(t−i) w_i / Σ_i ema^(t−i).

    It is a mean from the first step on. None without `Training.ema`. Running statistics of a BatchNorm are averaged
    like weights.

    Args:
      step: number of steps before this one.
    """
    if ema is None:
        return None
    past = 1 - jnp.power(ema, step)
    share = (1 - ema) / (1 - ema + ema * past)
    return jax.tree.map(lambda mean, new: (1 - share) * mean + share * new, average, params)
