"""The optimizers by name, built from config leaves inside the traced function, so that all numbers can be mapped.

To add one, write a class with its numbers and its `direction`, here or in a file of your own.
"""

from typing import ClassVar

import jax
import optax
import optax.contrib
from jaxtyping import Array, Float, PyTree

from flaxformer.core.struct import leaf, part, static
from flaxformer.model.weights import Transformer
from flaxformer.training.per_layer import LayerView, matrix_dimensions, muon_labels, per_layer
from flaxformer.training.schedule import Constant, Optimizer, Schedule
from flaxformer.training.weight_scales import WeightScales


class AdamW(Optimizer):
    """m / (√v + ε), with bias-corrected running means m of the gradient and v of its square.

    Sources: Kingma & Ba 2015; Loshchilov & Hutter 2019; the warm-up of Vaswani et al. 2017, section 5.3.
    """

    beta1: float = leaf(0.9, at_least=0, below=1)
    beta2: float = leaf(0.98, at_least=0, below=1)
    epsilon: float = leaf(1e-8, above=0)
    gradient_degree: ClassVar[int | None] = 0
    layers: ClassVar[LayerView] = "stored"

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(b1=self.beta1, b2=self.beta2, eps=self.epsilon)


class SGD(Optimizer):
    """The sum m ← momentum · m + g; with nesterov, g + momentum · m (Sutskever et al. 2013)."""

    momentum: float = leaf(0.9, at_least=0, below=1)
    nesterov: bool = static(False)
    gradient_degree: ClassVar[int | None] = 1
    layers: ClassVar[LayerView] = "stored"

    def direction(self) -> optax.GradientTransformation:
        return optax.trace(decay=self.momentum, nesterov=self.nesterov)


class Lion(Optimizer):
    """sign(β₁ m + (1 − β₁) g), then m ← β₂ m + (1 − β₂) g (Chen et al. 2023, algorithm 2).

    Each number moves by the rate itself: a rate 3 to 10 times below AdamW's, and as many times its weight decay.
    """

    beta1: float = leaf(0.9, at_least=0, below=1)
    beta2: float = leaf(0.99, at_least=0, below=1)
    gradient_degree: ClassVar[int | None] = 0
    layers: ClassVar[LayerView] = "stored"

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_lion(b1=self.beta1, b2=self.beta2)


class Adopt(Optimizer):
    """A running mean of g / max(√v, ε), v that of g² before this step, clipped to ±step^¼ (Taniguchi et al. 2024).

    The first step only takes v: it changes no weight.
    """

    beta1: float = leaf(0.9, at_least=0, below=1)
    beta2: float = leaf(0.9999, at_least=0, below=1)
    epsilon: float = leaf(1e-6, above=0)
    gradient_degree: ClassVar[int | None] = 0
    layers: ClassVar[LayerView] = "stored"

    def direction(self) -> optax.GradientTransformation:
        return optax.contrib.adopt(-1.0, b1=self.beta1, b2=self.beta2, eps=self.epsilon)


class Lamb(Optimizer):
    """AdamW's step of each weight u, weight decay in it, times |w| / |u| (You et al. 2020, algorithm 2)."""

    beta1: float = leaf(0.9, at_least=0, below=1)
    beta2: float = leaf(0.999, at_least=0, below=1)
    epsilon: float = leaf(1e-6, above=0)
    layers: ClassVar[LayerView] = "stored"

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(b1=self.beta1, b2=self.beta2, eps=self.epsilon)

    def decayed_direction(self, scales: WeightScales | None) -> list[optax.GradientTransformation]:
        return [*super().decayed_direction(scales), per_layer(optax.scale_by_trust_ratio(), "mapped")]


class Adafactor(Optimizer):
    """g / √v, with v factored into row and column means, at most `threshold` in root mean square.

    v is a running mean of g² with rate 1 − step^(−decay_exponent); a weight of which two axes have `factored_from`
    places or more keeps its rows' and columns' means alone. The step is not scaled by the weight's own size: the
    learning rate is an absolute one. Source: Shazeer & Stern 2018, algorithms 4 and 5.
    """

    decay_exponent: float = leaf(0.8, above=0)
    threshold: float = leaf(1.0, above=0)
    epsilon: float = leaf(1e-30, above=0)
    factored_from: int = static(128, at_least=2)
    gradient_degree: ClassVar[int | None] = 0
    layers: ClassVar[LayerView] = "mapped"

    def direction(self) -> optax.GradientTransformation:
        scaled = optax.scale_by_factored_rms(
            decay_rate=self.decay_exponent, epsilon=self.epsilon, min_dim_size_to_factor=self.factored_from
        )
        return optax.chain(scaled, optax.clip_by_block_rms(self.threshold))


class Muon(Optimizer):
    """Each layer's matrices move by their momentum made orthogonal; all other weights, by Adam.

    The momentum is m ← momentum · m + g; with nesterov, g + momentum · m is made orthogonal in its place, without a
    correction of its bias. For a matrix U S Vᵀ, `iterations` of Newton and Schulz give about U Vᵀ, here times
    rms · √max(fan-in, fan-out), so that its root mean square is about that of Adam's step and both share a learning
    rate; rms=None is √max(1, fan-out / fan-in). A map into or out of heads is one matrix, all heads together.

    Sources: Jordan et al. 2024 (Muon); Liu et al. 2025, section 2.2 (the scale).
    """

    momentum: float = leaf(0.95, at_least=0, below=1)
    nesterov: bool = static(True)
    iterations: int = static(5, at_least=1)
    rms: float | None = leaf(0.2, above=0)
    beta1: float = leaf(0.9, at_least=0, below=1)
    beta2: float = leaf(0.98, at_least=0, below=1)
    epsilon: float = leaf(1e-8, above=0)
    gradient_degree: ClassVar[int | None] = 0
    layers: ClassVar[LayerView] = "stored"

    def direction(self) -> optax.GradientTransformation:
        # With beta=0, Optax's rule makes its argument orthogonal and keeps nothing. Its momentum would be corrected for
        # bias as in NAdam, which changes the direction of the first steps with nesterov.
        orthogonal = optax.contrib.muon(
            -1.0,
            beta=0.0,
            nesterov=False,
            ns_steps=self.iterations,
            consistent_rms=self.rms,
            muon_weight_dimension_numbers=matrix_dimensions,
        )
        momentum = optax.trace(decay=self.momentum, nesterov=self.nesterov)
        matrix = optax.chain(momentum, optax.stateless(lambda g, params: _first_update(orthogonal, g)))
        adam = optax.scale_by_adam(b1=self.beta1, b2=self.beta2, eps=self.epsilon)
        return optax.partition({"matrix": matrix, "other": adam}, muon_labels)


def _first_update(transform: optax.GradientTransformation, gradient: PyTree) -> PyTree:
    """Return the update that a transform without a memory gives for a gradient."""
    return transform.update(gradient, transform.init(gradient), gradient)[0]


class ScheduleFree(Optimizer):
    """AdamW without a decay of its rate: weights z take its steps, x is their average, and y lies between the two.

    Gradients are taken at y = (1 − β₁) z + β₁ x (`TrainState.params`), and x is evaluated (`evaluation_params`). The
    average weighs each step by the square of the largest rate so far, as the authors' code does; with the constant rate
    of the default, that is the square of its rate. Source: Defazio et al. 2024.
    """

    decay: Schedule = part(Constant())
    averages: ClassVar[bool] = True
    gradient_degree: ClassVar[int | None] = 0
    beta1: float = leaf(0.9, above=0, below=1)
    beta2: float = leaf(0.98, at_least=0, below=1)
    epsilon: float = leaf(1e-8, above=0)
    layers: ClassVar[LayerView] = "stored"

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_rms(decay=self.beta2, eps=self.epsilon, eps_in_sqrt=False, bias_correction=True)

    def update(self, rate: float | Float[Array, ""], scales: WeightScales | None) -> list[optax.GradientTransformation]:
        return [optax.contrib.schedule_free(optax.chain(*super().update(rate, scales)), rate, b1=self.beta1)]

    def average_weights(self, state: optax.OptState, params: Transformer) -> Transformer:
        [schedule_free] = [member for member in state if isinstance(member, optax.contrib.ScheduleFreeState)]
        return jax.tree.map(lambda y, z: (y - (1 - self.beta1) * z) / self.beta1, params, schedule_free.z)
