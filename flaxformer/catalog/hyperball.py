"""Hyperball: each matrix keeps its initial norm, and moves along that sphere by a fixed share of it.

    W ← R · N(W − η R · N(u)), with N(x) = x / |x|_F, R = |W_0|_F, the learning rate η and the update u of Adam or Muon

Family: optimizers
Source: Wen et al. 2026, "Fantastic Pretraining Optimizers and Where to Find Them II: Hyperball Optimization",
arXiv:2606.16899; read as the authors' article of December 2025, whenwen.github.io. Embeddings, gains and biases move by
Adam, here with the same learning rate.
Claim: 20 to 30% fewer tokens than with weight decay for models of up to 1.2B weights, and learning rates that transfer
over width and depth.
Cost: one number per matrix; no weight decay of matrices.
Verified: a loop over steps and matrices in float64 NumPy; constant norms.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from flaxformer import AdamW, Muon, Optimizer, weight_axes

TINY = 1e-30


class Hyperball(Optimizer):
    """Base of optimizers whose matrices of layers stay on a sphere: turns their update into a step along it.

    A matrix that is 0 at the start has no sphere, and moves as without. Weight decay shrinks the other weights alone.
    """

    is_abstract: ClassVar[bool] = True

    def decayed_direction(self, scales: Any) -> list[optax.GradientTransformation]:
        direction, *decay = super().decayed_direction(scales)
        return [direction, *map(without_matrices, decay)]

    def update(self, rate: float | Float[Array, ""], scales: Any) -> list[optax.GradientTransformation]:
        def init(params: PyTree) -> PyTree[Array]:
            return jax.tree.map(radius, params, weight_axes(params))

        def onto_spheres(updates: PyTree, radii: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
            axes = weight_axes(updates)
            factors = jax.tree.map(lambda _: 1.0, updates) if scales is None else scales.rate
            rates = jax.tree.map(lambda factor: factor * rate, factors)
            return jax.tree.map(step_on_sphere, updates, radii, params, rates, axes), radii

        return [*super().update(rate, scales), optax.GradientTransformation(init, onto_spheres)]


def without_matrices(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return a transform that leaves the matrices of layers as they are."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        changed, state = transform.update(updates, state, params)
        axes = weight_axes(updates)
        return jax.tree.map(lambda u, v, kind: u if kind.is_layer_matrix else v, updates, changed, axes), state

    return optax.GradientTransformation(transform.init, update)


def step_on_sphere(u: Array, r: Array, w: Array, rate: Any, axes: Any) -> Array:
    """Return the change of a weight on the sphere of radius r, towards the update u."""
    if not axes.is_layer_matrix:
        return u
    moved = w + rate * r * u / jnp.maximum(radius(u, axes), TINY)
    change = r * moved / jnp.maximum(radius(moved, axes), TINY) - w
    return jnp.where(r > 0, change, u).astype(u.dtype)


def radius(w: Array, axes: Any) -> Array:
    """Return the Frobenius norm of each matrix of a weight; 0 for a weight that is not a matrix of a layer."""
    if not axes.is_layer_matrix:
        return jnp.zeros((), w.dtype)
    return jnp.sqrt(jnp.square(w).sum((*axes.as_matrix[1], *axes.as_matrix[2]), keepdims=True))


class AdamHyperball(Hyperball, AdamW):
    """Adam (AdamH), with each matrix of a layer on its sphere."""


class MuonHyperball(Hyperball, Muon):
    """Muon (MuonH), with each matrix of a layer on its sphere; all other weights, by Adam."""


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "AdamH": {"optimizer": AdamHyperball},
    "MuonH": {"optimizer": MuonHyperball},
}
