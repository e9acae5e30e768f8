"""What all optimizers share: the learning rate over the steps, weight decay and clipping."""

from collections.abc import Callable

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from flaxformer.struct import Config, leaf, static

DECAYS: dict[str, Callable[[Array, Array], Array]] = {
    # progress runs from 0 (end of the warm-up) to 1 (last step); ratio is steps taken / warm-up steps
    "constant": lambda progress, ratio: jnp.ones_like(progress),
    "linear": lambda progress, ratio: 1 - progress,
    "cosine": lambda progress, ratio: 0.5 * (1 + jnp.cos(jnp.pi * progress)),
    "inverse_sqrt": lambda progress, ratio: jnp.maximum(ratio, 1.0) ** -0.5,
}


class Optimizer(Config):
    """Base of every optimizer: w ← w − rate · (direction + weight_decay · w), from clipped gradients.

    The direction is the optimizer's own; the rate is `learning_rate`, with a warm-up and a decay. Weight decay is
    decoupled (Loshchilov & Hutter 2019) and shrinks what is declared to be shrunk; clipping is by the global norm.
    """

    learning_rate: float = leaf(1e-3, at_least=0)
    warmup_steps: float = leaf(0.0, at_least=0)
    decay: str = static("linear", choices=DECAYS)
    final_fraction: float = leaf(0.0, at_least=0, at_most=1)
    weight_decay: float | None = leaf(None, at_least=0)
    clip: float | None = leaf(None, above=0)

    def direction(self) -> optax.GradientTransformation:
        """From a clipped gradient to what the learning rate multiplies."""
        raise NotImplementedError


def learning_rate(config: Optimizer, step: int | Int[Array, ""], steps: int) -> Float[Array, ""]:
    """The learning rate of step number `step` (from 0) of `steps`.

    It rises linearly, lr · (step + 1) / warmup_steps, during the warm-up, then falls from lr to
    lr · final_fraction as `decay` says: constant; linear; cosine; or inverse_sqrt, lr · √(warmup / (step + 1)),
    which takes final_fraction as its floor.
    """
    taken, warmup = jnp.asarray(step, jnp.float32) + 1, jnp.asarray(config.warmup_steps, jnp.float32)
    progress = jnp.clip((taken - 1 - warmup) / jnp.maximum(steps - warmup, 1.0), 0, 1)
    decay = DECAYS[config.decay](progress, taken / jnp.maximum(warmup, 1.0))
    if config.decay == "inverse_sqrt":
        decayed = jnp.maximum(decay, config.final_fraction)
    else:
        decayed = config.final_fraction + (1 - config.final_fraction) * decay
    return config.learning_rate * jnp.where(taken < warmup, taken / jnp.maximum(warmup, 1.0), decayed)
