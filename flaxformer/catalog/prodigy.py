"""Prodigy: Adam with a learning rate of 1, times a running estimate of the distance to the solution.

    r ← √β₂ r + (1 − √β₂) d² ⟨g, w₀ − w⟩, s ← √β₂ s + (1 − √β₂) d² g, d ← max(d, r / |s|₁)
    u = d m / (√v + d ε), with running means m (β₁) of d g and v (β₂) of d² g²; weight decay is scaled by d too

Family: optimizers
Source: Mishchenko & Defazio 2023, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", arXiv:2306.06101
(the version with Adam's step), read as `optax.contrib.prodigy` and its abstract. There, each term of r and s is also
multiplied by the factor of the schedule; here, by 1.
Claim: test accuracy and loss close to those of hand-tuned Adam on 12 logistic regressions, VGG11, ResNet-50, ViT, LSTM,
DLRM, VarNet, RoBERTa and GPT, without a learning rate.
Cost: two numbers per weight more than Adam: w₀ and s; two sums over all weights per step.
Verified: a loop over steps in float64 NumPy.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from flaxformer import Optimizer, leaf


class ProdigyState(NamedTuple):
    """State: d, r, s, and the means of Adam."""

    distance: Float[Array, ""]
    product: Float[Array, ""]
    total: PyTree[Array]
    mean: PyTree[Array]
    square: PyTree[Array]
    first: PyTree[Array]


class Prodigy(Optimizer):
    """d m / (√v + d ε), where d never falls; the learning rate is 1 at its peak.

    start: d before the first step, below any distance in question.
    """

    learning_rate: float = leaf(1.0, at_least=0)
    beta1: float = leaf(0.9, at_least=0, below=1)
    beta2: float = leaf(0.999, at_least=0, below=1)
    epsilon: float = leaf(1e-8, above=0)
    start: float = leaf(1e-6, above=0)
    gradient_degree: ClassVar[int | None] = 0
    layers: ClassVar[str] = "stored"

    def direction(self) -> optax.GradientTransformation:
        """Return the transform whose result is m / (√v + d ε); `decayed_direction` multiplies with d."""
        decay = jnp.sqrt(self.beta2)

        def init(params: PyTree) -> ProdigyState:
            zeros = optax.tree.zeros_like(params)
            start = jnp.asarray(self.start, jnp.result_type(float))
            return ProdigyState(start, jnp.zeros_like(start), zeros, zeros, zeros, params)

        def update(updates: PyTree, state: ProdigyState, params: PyTree = None) -> tuple[PyTree, ProdigyState]:
            d = state.distance
            moved = optax.tree.vdot(updates, jax.tree.map(jnp.subtract, state.first, params))
            product = decay * state.product + (1 - decay) * d * d * moved
            total = jax.tree.map(lambda s, g: decay * s + (1 - decay) * d * d * g, state.total, updates)
            mean = jax.tree.map(lambda m, g: self.beta1 * m + (1 - self.beta1) * d * g, state.mean, updates)
            square = jax.tree.map(
                lambda v, g: self.beta2 * v + (1 - self.beta2) * jnp.square(d * g), state.square, updates
            )
            length = optax.tree.sum(jax.tree.map(jnp.abs, total))
            distance = jnp.maximum(d, product / jnp.maximum(length, 1e-30))
            u = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + d * self.epsilon), mean, square)
            numbers = (distance.astype(d.dtype), product.astype(d.dtype))
            return u, ProdigyState(*numbers, total, mean, square, state.first)

        return optax.GradientTransformation(init, update)

    def decayed_direction(self, scales: Any) -> list[optax.GradientTransformation]:
        chain = optax.chain(*super().decayed_direction(scales))

        def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
            d = optax.tree.get(state, "distance")
            updates, state = chain.update(updates, state, params)
            return jax.tree.map(lambda u: (d * u).astype(u.dtype), updates), state

        return [optax.GradientTransformation(chain.init, update)]


VARIANTS: Mapping[str, Mapping[str, object]] = {"Prodigy": {"optimizer": Prodigy, "optimizer.learning_rate": 1.0}}
