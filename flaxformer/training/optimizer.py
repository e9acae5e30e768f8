"""AdamW with a warm-up and a decay, built from config leaves inside the traced function, so that all can be mapped."""

from collections.abc import Callable

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from flaxformer.params import decay_mask
from flaxformer.struct import Config, leaf, static

DECAYS: dict[str, Callable[[Array, Array], Array]] = {
    # progress runs from 0 (end of the warm-up) to 1 (last step); ratio is steps taken / warm-up steps
    "constant": lambda progress, ratio: jnp.ones_like(progress),
    "linear": lambda progress, ratio: 1 - progress,
    "cosine": lambda progress, ratio: 0.5 * (1 + jnp.cos(jnp.pi * progress)),
    "inverse_sqrt": lambda progress, ratio: jnp.maximum(ratio, 1.0) ** -0.5,
}


class AdamW(Config):
    """Adam with decoupled weight decay, gradient clipping by global norm, warm-up and decay.

    Sources: Kingma & Ba 2015; Loshchilov & Hutter 2019; the warm-up of Vaswani et al. 2017, section 5.3.
    """

    learning_rate: float = leaf(1e-3, at_least=0)
    warmup_steps: float = leaf(0.0, at_least=0)
    decay: str = static("linear", choices=DECAYS)
    final_fraction: float = leaf(0.0, at_least=0, at_most=1)
    beta1: float = leaf(0.9, at_least=0, below=1)
    beta2: float = leaf(0.98, at_least=0, below=1)
    epsilon: float = leaf(1e-8, above=0)
    weight_decay: float | None = leaf(None, at_least=0)
    clip: float | None = leaf(None, above=0)


def learning_rate(config: AdamW, step: int | Int[Array, ""], steps: int) -> Float[Array, ""]:
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


def optimizer(config: AdamW, rate: float | Float[Array, ""]) -> optax.GradientTransformation:
    """The Optax chain at one learning rate; its state does not depend on any number in the config."""
    chain = [optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)]
    if config.clip is not None:
        chain.insert(0, optax.clip_by_global_norm(config.clip))
    if config.weight_decay is not None:
        chain.append(optax.add_decayed_weights(config.weight_decay, mask=decay_mask))
    return optax.chain(*chain, optax.scale_by_learning_rate(rate))
