"""Kron: momentum times a preconditioner that is fitted to whiten the gradients, a Kronecker product (PSGD).

    u = Q_Lᵀ Q_L m̂ Q_Rᵀ Q_R, with a root mean square of at most 1.1, and with triangular Q fitted by
    Q_L ← Q_L − μ triu(A − B) Q_L / |A + B|, A = Q_L G Q_Rᵀ Q_R Gᵀ Q_Lᵀ, B = |Q_R⁻¹|² Q_L⁻ᵀ Q_L⁻¹, and Q_R likewise

Family: optimizers
Source: Li 2018, "Preconditioned Stochastic Gradient Descent", arXiv:1512.04202, read as the code of psgd_jax
(`kron.py`), whose settings these are. There, B is an estimate from a random matrix; here, it is its mean, so that
updates do not depend on a random key.
Claim: none that was read; it is one of the optimizers that recent comparisons of pre-training include.
Cost: a triangular matrix per side of a weight; eight products with square matrices and two inverses in a step that fits
them: every step at first, then ever fewer, and one in 33 at last.
Verified: a loop over steps in float64 NumPy, with B as a sum over all unit matrices.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from flaxformer import Optimizer, leaf, weight_axes
from flaxformer.nn.triangular import solve_unit_lower

MOST = 1.1
"""Largest root mean square of an update."""


class Factors(NamedTuple):
    """State of the matrices [*stacked, m, n] of one weight: Q_L, Q_R, and the running mean of the gradient."""

    left: Float[Array, "*stacked m m"]
    right: Float[Array, "*stacked n n"]
    mean: Float[Array, "*stacked m n"]


class KronState(NamedTuple):
    """Number of steps, steps since the last fit, and the state of each weight."""

    step: Array
    waited: Array
    factors: PyTree


class Kron(Optimizer):
    """Q_Lᵀ Q_L m̂ Q_Rᵀ Q_R for each matrix of a layer; Adam for other weights.

    fit_rate: μ.
    flat, fall, least: the share of the steps that fit is 1 for `flat` steps, then e^(−`fall` per step), at least
        `least`.
    """

    beta1: float = leaf(0.9, at_least=0, below=1)
    beta2: float = leaf(0.98, at_least=0, below=1)
    epsilon: float = leaf(1e-8, above=0)
    fit_rate: float = leaf(0.1, above=0)
    flat: float = leaf(500.0, at_least=0)
    fall: float = leaf(1e-3, at_least=0)
    least: float = leaf(0.03, above=0, at_most=1)
    gradient_degree: ClassVar[int | None] = 0

    def direction(self) -> optax.GradientTransformation:
        def label(params: PyTree) -> PyTree[str]:
            return jax.tree.map(lambda axes: "matrix" if axes.is_layer_matrix else "other", weight_axes(params))

        adam = optax.scale_by_adam(b1=self.beta1, b2=self.beta2, eps=self.epsilon)
        return optax.partition({"matrix": optax.GradientTransformation(init, self.whiten), "other": adam}, label)

    def whiten(self, updates: PyTree, state: KronState, params: PyTree = None) -> tuple[PyTree, KronState]:
        """Return the preconditioned momentum, and the next state."""
        step, waited = state.step + 1, state.waited + 1
        share = jnp.clip(jnp.exp(-self.fall * (step - self.flat)), self.least, 1)
        fits = waited >= 1 / share
        gradients, axes = jax.tree.leaves(updates), jax.tree.leaves(weight_axes(updates))
        states = jax.tree.leaves(state.factors, is_leaf=lambda node: isinstance(node, Factors))
        changes, factors = [], []
        for kind, gradient, old in zip(axes, gradients, states, strict=True):
            g = kind.matrices(gradient)
            left, right = jax.lax.cond(fits, self.fitted, lambda _, left, right: (left, right), g, old.left, old.right)
            mean = self.beta1 * old.mean + (1 - self.beta1) * g
            u = left.mT @ left @ mean @ right.mT @ right / (1 - jnp.power(self.beta1, step))
            u = u / jnp.maximum(1, jnp.sqrt(jnp.square(u).mean((-1, -2), keepdims=True)) / MOST)
            changes.append(kind.from_matrices(u, gradient.shape))
            factors.append(Factors(left, right, mean))
        tree = jax.tree.structure(updates)
        after = KronState(step, jnp.where(fits, 0, waited), jax.tree.unflatten(tree, factors))
        return jax.tree.unflatten(tree, changes), after

    def fitted(self, g: Float[Array, "*stacked m n"], left: Array, right: Array) -> tuple[Array, Array]:
        """Return Q_L and Q_R after a step towards white gradients, with entries of the same largest size."""
        damping = jnp.square(jnp.abs(g).mean((-1, -2), keepdims=True)) * jnp.finfo(jnp.float32).eps
        inverses = [inverse_of_upper(q) for q in (left, right)]
        sides = []
        for q, other, q_inverse, other_inverse, h in (
            (left, right, *inverses, g),
            (right, left, *reversed(inverses), g.mT),
        ):
            white = q @ h @ other.mT
            first = white @ white.mT + damping * squares(other) * q @ q.mT
            second = squares(other_inverse) * q_inverse.mT @ q_inverse
            total = first + second
            sides.append(q - self.fit_rate * jnp.triu(first - second) @ q / jnp.maximum(length(total), 1e-30))
        largest = [jnp.abs(q).max((-1, -2), keepdims=True) for q in sides]
        mean = jnp.sqrt(largest[0] * largest[1])
        return sides[0] * mean / largest[0], sides[1] * mean / largest[1]


def inverse_of_upper(q: Float[Array, "*stacked n n"]) -> Float[Array, "*stacked n n"]:
    """Return the inverses of upper triangular matrices: (D⁻¹ Qᵀ) X = D⁻¹ with their diagonals D, transposed."""
    diagonal = jnp.diagonal(q, axis1=-2, axis2=-1)[..., None]
    return solve_unit_lower(q.mT / diagonal, eye_like(q) / diagonal).mT


def eye_like(q: Float[Array, "*stacked n n"]) -> Float[Array, "*stacked n n"]:
    """Return identities."""
    return jnp.broadcast_to(jnp.eye(q.shape[-1], dtype=q.dtype), q.shape)


def squares(q: Float[Array, "*stacked m n"]) -> Float[Array, "*stacked 1 1"]:
    """Return the sum of the squares of the entries of each matrix."""
    return jnp.square(q).sum((-1, -2), keepdims=True)


def length(a: Float[Array, "*stacked n n"]) -> Float[Array, "*stacked 1 1"]:
    """Return a lower bound |A v| of the largest eigenvalue, with v along A c and the longest column c."""
    place = jnp.square(a).sum(-2, keepdims=True).argmax(-1, keepdims=True)
    v = a @ jnp.take_along_axis(a, place, axis=-1)
    return jnp.sqrt(squares(a @ v) / jnp.maximum(squares(v), 1e-30))


def init(params: PyTree) -> KronState:
    """Return the state before the first step: identities."""

    def begun(w: Array, axes: Any) -> Factors:
        zeros = jnp.zeros_like(axes.matrices(w))
        left, right = (eye_like(jnp.zeros((*zeros.shape[:-2], n, n), zeros.dtype)) for n in zeros.shape[-2:])
        return Factors(left, right, zeros)

    return KronState(jnp.int32(0), jnp.int32(0), jax.tree.map(begun, params, weight_axes(params)))


VARIANTS: Mapping[str, Mapping[str, object]] = {"Kron": {"optimizer": Kron}}
