"""AdEMAMix: Adam with a second, much slower running mean of the gradient.

    u = (m̂₁ + α m₂) / (√v̂ + ε), with running means m₁ (β₁) and m₂ (β₃) of g, and v (β₂) of g²

Family: optimizers
Source: Pagliardini et al. 2024, "The AdEMAMix Optimizer: Better, Faster, Older", arXiv:2409.03137, section 3, with its
schedules of α and β₃.
Claim: a 1.3B model trained on 101B tokens has the loss of one trained by AdamW on 197B tokens.
Cost: one running mean more than Adam.
Verified: a loop over steps in NumPy, with and without the schedules.
"""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from flaxformer import Optimizer, leaf


class AdEMAMix(Optimizer):
    """(m̂₁ + α m₂) / (√v̂ + ε).

    rise: number of steps in which α rises linearly from 0, and the half-life of m₂ from that of m₁; 0 for none. The
        paper has the number of steps of the training.
    """

    beta1: float = leaf(0.9, above=0, below=1)
    beta2: float = leaf(0.999, at_least=0, below=1)
    beta3: float = leaf(0.9999, above=0, below=1)
    alpha: float = leaf(5.0, at_least=0)
    epsilon: float = leaf(1e-8, above=0)
    rise: float = leaf(0.0, at_least=0)
    gradient_degree: ClassVar[int | None] = 0
    layers: ClassVar[str] = "stored"

    def direction(self) -> optax.GradientTransformation:
        def init(params: PyTree) -> tuple[PyTree, PyTree, PyTree, Array]:
            zeros = jax.tree.map(jnp.zeros_like, params)
            return zeros, zeros, zeros, jnp.int32(0)

        def update(updates: PyTree, state: tuple, params: PyTree = None) -> tuple[PyTree, tuple]:
            fast, slow, square, steps = state
            risen = jnp.where(self.rise > 0, jnp.minimum(steps / jnp.maximum(self.rise, 1), 1), 1.0)
            first, last = 1 / jnp.log(self.beta1), 1 / jnp.log(self.beta3)
            beta3 = jnp.exp(1 / ((1 - risen) * first + risen * last))
            steps = steps + 1
            fast = jax.tree.map(lambda m, g: self.beta1 * m + (1 - self.beta1) * g, fast, updates)
            slow = jax.tree.map(lambda m, g: (beta3 * m + (1 - beta3) * g).astype(m.dtype), slow, updates)
            square = jax.tree.map(lambda v, g: self.beta2 * v + (1 - self.beta2) * g * g, square, updates)
            whole1, whole2 = 1 - jnp.power(self.beta1, steps), 1 - jnp.power(self.beta2, steps)
            direction = jax.tree.map(
                lambda m1, m2, v: (m1 / whole1 + risen * self.alpha * m2) / (jnp.sqrt(v / whole2) + self.epsilon),
                fast, slow, square,
            )  # fmt: skip
            return direction, (fast, slow, square, steps)

        return optax.GradientTransformation(init, update)


VARIANTS: Mapping[str, Mapping[str, object]] = {"AdEMAMix": {"optimizer": AdEMAMix}}
