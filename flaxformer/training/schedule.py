"""Settings that all optimizers share: the learning rate over the steps, weight decay and clipping."""

import functools
from collections.abc import Callable, Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from flaxformer.core.struct import Config, leaf, part, static
from flaxformer.core.weight_axes import decay_mask
from flaxformer.model.weights import Transformer
from flaxformer.training.moments import MOMENT_DTYPES, stored_in_bfloat16
from flaxformer.training.per_layer import LayerView, per_layer
from flaxformer.training.weight_scales import WeightScales


class Schedule(Config):
    """Base of the schedules: how the learning rate falls after the warm-up.

    `progress` is (steps taken before this one − warm-up steps) / (steps − warm-up steps): 0 in the first step after the
    warm-up, and 1 − 1 / (steps − warm-up steps) in the last, so that it would be 1 one step after the end. `ratio` is
    steps taken / warm-up steps, at least 1. The numbers may be traced: a schedule is arithmetic, not control flow.
    """

    is_abstract: ClassVar[bool] = True

    def fraction(self, progress: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        """Return the factor of the decay, from 1 to 0."""
        raise NotImplementedError(f"{type(self).__name__} does not define `fraction`")

    def multiplier(
        self, progress: Float[Array, ""], ratio: Float[Array, ""], final: float | Float[Array, ""]
    ) -> Float[Array, ""]:
        """Return the factor of the peak rate: `fraction`, raised so that it ends at `final`."""
        return final + (1 - final) * self.fraction(progress, ratio)

    def init_state(self) -> PyTree[Array]:
        """Return what a schedule that sees the loss keeps between steps, before the first; None for no state."""
        return None

    def observe(self, state: PyTree[Array], loss: Float[Array, ""], step: Int[Array, ""]) -> PyTree[Array]:
        """Return the state after the training loss of a step, with the shapes and dtypes of the former one.

        It is called before the update of the step, with every loss that is finite.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `observe`")

    def factor(self, state: PyTree[Array]) -> Float[Array, ""]:
        """Return the number by which a state multiplies the learning rate, also in the warm-up."""
        raise NotImplementedError(f"{type(self).__name__} does not define `factor`")


class Constant(Schedule):
    """The peak rate to the end."""

    def fraction(self, progress: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.ones_like(progress)


class Linear(Schedule):
    """A straight line."""

    def fraction(self, progress: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        return 1 - progress


class Cosine(Schedule):
    """Half a cosine (Loshchilov & Hutter 2017)."""

    def fraction(self, progress: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        return 0.5 * (1 + jnp.cos(jnp.pi * progress))


class InverseSqrt(Schedule):
    """√(warm-up steps / steps), never below the final fraction (Vaswani et al. 2017, section 5.3)."""

    def fraction(self, progress: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.maximum(ratio, 1.0) ** -0.5

    def multiplier(
        self, progress: Float[Array, ""], ratio: Float[Array, ""], final: float | Float[Array, ""]
    ) -> Float[Array, ""]:
        return jnp.maximum(self.fraction(progress, ratio), final)


class WarmupStableDecay(Schedule):
    """Peak rate until the last `share` of the steps, in which it falls to 0 (Hu et al. 2024, section 4).

    cool_down: with the elapsed fraction e of the decay, 1 − √e ("sqrt"), 1 − e ("linear") or ½ (1 + cos πe) ("cosine").
    """

    share: float = leaf(0.2, above=0, at_most=1)
    cool_down: str = static("sqrt", choices=("sqrt", "linear", "cosine"), omit_default=True)

    def fraction(self, progress: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        elapsed = jnp.clip((progress - (1 - self.share)) / self.share, 0, 1)
        if self.cool_down == "cosine":
            return (1 + jnp.cos(jnp.pi * elapsed)) / 2
        return 1 - (jnp.sqrt(elapsed) if self.cool_down == "sqrt" else elapsed)


Schedule.named = {
    "constant": Constant(),
    "linear": Linear(),
    "cosine": Cosine(),
    "inverse_sqrt": InverseSqrt(),
    "wsd": WarmupStableDecay(),
}


Direction = Callable[["Optimizer"], optax.GradientTransformation]


class Optimizer(Config):
    """Base of every optimizer: w ← w − rate · (direction + weight_decay · w), from clipped gradients.

    The direction is the optimizer's own; the rate is `learning_rate`, with a warm-up and a decay. Weight decay is
    decoupled (Loshchilov & Hutter 2019) and shrinks what is declared to be shrunk; clipping is by the global norm.

    cautious_decay: True shrinks a weight only where its update does not have the opposite sign, so that decay never
        acts against the optimizer (Chen et al. 2025, "Cautious Weight Decay").

    moment_dtype: "bfloat16" stores the optimizer's running means and other state of the direction in bfloat16, with
    stochastic rounding (`training.moments`); all arithmetic stays float32.
    """

    learning_rate: float = leaf(1e-3, at_least=0)
    warmup_steps: float = leaf(0.0, at_least=0)
    decay: Schedule = part(Linear())
    final_fraction: float = leaf(0.0, at_least=0, at_most=1)
    weight_decay: float | None = leaf(None, at_least=0)
    cautious_decay: bool = static(False, omit_default=True)
    clip: float | None = leaf(None, above=0)
    moment_dtype: str = static("float32", choices=MOMENT_DTYPES, omit_default=True)
    is_abstract: ClassVar[bool] = True

    layers: ClassVar[LayerView] = "unrolled"
    """Layout of the layers in the trees that `direction` gets, from `per_layer`. A class that defines `direction` gets
    unrolled layers unless it says otherwise."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "direction" in vars(cls):
            cls.layers = vars(cls).get("layers", "unrolled")
            setattr(cls, "direction", _in_layout(cls.direction, cls.layers))  # noqa: B010

    def problems(self) -> Iterator[str]:
        if self.cautious_decay and self.weight_decay is None:
            yield "cautious_decay is True with weight_decay None; expected a weight_decay"

    def direction(self) -> optax.GradientTransformation:
        """From a clipped gradient to what the learning rate multiplies."""
        raise NotImplementedError(f"{type(self).__name__} does not define `direction`")

    def transformation(
        self, rate: float | Float[Array, ""], scales: WeightScales | None = None
    ) -> optax.GradientTransformation:
        """The Optax chain at one learning rate; the shapes of its state do not depend on any number in the config.

        Args:
          scales: factors on the learning rate and the weight decay of each weight; None if all are 1.
        """
        clip = [] if self.clip is None else [optax.clip_by_global_norm(self.clip)]
        return optax.chain(*clip, *self.update(rate, scales))

    def update(self, rate: float | Float[Array, ""], scales: WeightScales | None) -> list[optax.GradientTransformation]:
        """The parts of the chain after clipping: direction, weight decay, learning rate."""
        scaling = [] if scales is None else [_multiply(scales.rate)]
        return [*self.decayed_direction(scales), *scaling, optax.scale_by_learning_rate(rate)]

    def decayed_direction(self, scales: WeightScales | None) -> list[optax.GradientTransformation]:
        """The direction, and the weight decay that is added to it."""
        decay, direction = self.weight_decay, self.direction()
        if self.moment_dtype == "bfloat16":
            direction = stored_in_bfloat16(direction)
        if decay is None:
            return [direction]
        if scales is None:
            added = optax.add_decayed_weights(decay, mask=decay_mask)
        else:
            added = _add_decayed_weights(jax.tree.map(lambda factor: decay * factor, scales.decay))
        return [direction, _cautious(added) if self.cautious_decay else added]

    def after_step(self, params: Transformer) -> Transformer:
        """Return all weights after a step, such as their projection on a sphere; layers are unrolled.

        It is applied to the initial weights of a training too. Weights that are not trained do not change.
        """
        return params

    def average_weights(self, state: optax.OptState, params: Transformer) -> Transformer:
        """The weights to evaluate, given those that train and the optimizer's state."""
        return params

    averages: ClassVar[bool] = False
    """True if `average_weights` gives other weights than those that train."""
    gradient_degree: ClassVar[int | None] = None
    """0 if the direction does not depend on the size of the gradient (Adam), 1 if it is proportional to it (SGD); None
    if neither holds. A `Parametrization` with learning rates per weight needs 0 or 1."""


def _in_layout(direction: Direction, layers: LayerView) -> Direction:
    """Return the method `direction` of a class, whose transform gets the layers in this layout."""

    @functools.wraps(direction)
    def in_layout(self: Optimizer) -> optax.GradientTransformation:
        return per_layer(direction(self), layers)

    return in_layout


def _multiply(factors: Transformer) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, params: jax.tree.map(lambda u, factor: u * factor, updates, factors))


def _add_decayed_weights(decays: Transformer) -> optax.GradientTransformation:
    """Add each weight times its own weight decay to the updates of the weights that weight decay applies to."""

    def add(updates: Transformer, params: Transformer | None) -> Transformer:
        assert params is not None
        return jax.tree.map(
            lambda u, w, decay, applies: u + decay * w if applies else u, updates, params, decays, decay_mask(params)
        )

    return optax.stateless(add)


def _cautious(decay: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return a transform that adds weight decay where the signs of update and weight do not differ."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        decayed, state = decay.update(updates, state, params)
        return jax.tree.map(lambda u, d, w: jnp.where(u * w >= 0, d, u), updates, decayed, params), state

    return optax.GradientTransformation(decay.init, update)


def learning_rate(config: Optimizer, step: int | Int[Array, ""], steps: int) -> Float[Array, ""]:
    """The learning rate of step number `step` (from 0) of `steps`.

    It rises linearly, lr · (step + 1) / warmup_steps, during the warm-up, then falls from lr towards
    lr · final_fraction, which it would reach one step after the last, as the schedule `decay` says, without the factor
    of a schedule that sees the loss.
    """
    taken, warmup = jnp.asarray(step, jnp.float32) + 1, jnp.asarray(config.warmup_steps, jnp.float32)
    progress = jnp.clip((taken - 1 - warmup) / jnp.maximum(steps - warmup, 1.0), 0, 1)
    decayed = config.decay.multiplier(progress, taken / jnp.maximum(warmup, 1.0), config.final_fraction)
    return config.learning_rate * jnp.where(taken < warmup, taken / jnp.maximum(warmup, 1.0), decayed)
