"""NorMuon: Muon whose orthogonal update is divided by a running size of each neuron's part.

    v ← β v + (1 − β) mean over inputs of O², Ô = O / (√v + ε), and u = 0.2 √(n m) Ô / |Ô|, with Muon's update O [n, m]

Family: optimizers
Source: Li et al. 2025, "NorMuon: Making Muon more efficient and scalable", arXiv:2510.05491.
Claim: at 1.1B weights, 21.74% better training efficiency than Adam, and 11.31% better than Muon.
Cost: one number per neuron beside Muon's momentum.
Verified: a loop over steps and neurons in NumPy, from Muon's update.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from flaxformer import Muon, leaf, weight_axes


class NorMuon(Muon):
    """Muon, then each neuron's part divided by its root mean square over past steps; all other weights, by Adam.

    A neuron is an output of a matrix. `rms` is the root mean square of the update.
    """

    neuron_decay: float = leaf(0.95, at_least=0, below=1)
    neuron_epsilon: float = leaf(1e-8, above=0)

    def direction(self) -> optax.GradientTransformation:
        return optax.chain(super().direction(), optax.GradientTransformation(self.init_neurons, self.normalise))

    def init_neurons(self, params: PyTree) -> PyTree[Array]:
        """Return v of each neuron, and a 0 for each weight that is not a matrix of a layer."""
        return jax.tree.map(lambda w, axes: jnp.zeros_like(mean_square(w, axes)), params, weight_axes(params))

    def normalise(self, updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        """Return the update with neurons of similar size, and the running sizes."""
        axes = weight_axes(updates)

        def size(v: Array, u: Array, axes: Any) -> Array:
            return self.neuron_decay * v + (1 - self.neuron_decay) * mean_square(u, axes)

        def scaled(v: Array, u: Array, axes: Any) -> Array:
            if not axes.is_layer_matrix:
                return u
            places = (*axes.as_matrix[1], *axes.as_matrix[2])
            even = u / (jnp.sqrt(v) + self.neuron_epsilon)
            length = jnp.sqrt(jnp.square(even).mean(places, keepdims=True))
            return (1.0 if self.rms is None else self.rms) * even / jnp.maximum(length, 1e-30)

        state = jax.tree.map(size, state, updates, axes)
        return jax.tree.map(scaled, state, updates, axes), state


def mean_square(u: Array, axes: Any) -> Array:
    """Return the mean square over the inputs of each neuron, 0 for a weight that is not a matrix."""
    return jnp.square(u).mean(axes.as_matrix[1], keepdims=True) if axes.is_layer_matrix else jnp.zeros((), u.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {"NorMuon": {"optimizer": NorMuon}}
