"""SOAP: Adam in the slowly changing eigenbasis of Shampoo's preconditioner.

    L ← β L + (1 − β) G Gᵀ, R ← β R + (1 − β) Gᵀ G; Q_L ← QR(L Q_L) and Q_R ← QR(R Q_R) after every f-th step
    U = Q_L Adam(Q_Lᵀ G Q_R) Q_Rᵀ; Adam's mean of G turns with the basis, that of squares does not

Family: optimizers
Source: Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam", arXiv:2409.11321, and the authors' code,
github.com/nikhilvyas/SOAP, whose first step only takes L and R; their eigenvectors are the first basis. The code sorts
the eigenvectors by size before each QR, which is left out here.
Claim: over 40% fewer iterations and over 35% less time than AdamW at 360M and 660M weights, in the large-batch regime.
Cost: for a matrix [m, n], 2 m² + 2 n² numbers beside Adam's; eight products with square matrices per step, and a QR of
each side in every f-th step. Embeddings, gains and biases move by Adam.
Verified: a loop over steps and matrices in float64 NumPy, with Gram and Schmidt in place of QR.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from flaxformer import Optimizer, leaf, static, weight_axes


class Basis(NamedTuple):
    """State of the matrices [*stacked, m, n] of one weight: Shampoo's factors, their bases, and Adam's means."""

    left: Float[Array, "*stacked m m"]
    right: Float[Array, "*stacked n n"]
    left_basis: Float[Array, "*stacked m m"]
    right_basis: Float[Array, "*stacked n n"]
    mean: Float[Array, "*stacked m n"]
    square: Float[Array, "*stacked m n"]


class SOAP(Optimizer):
    """Q_L (m̂ / (√v̂ + ε)) Q_Rᵀ for each matrix of a layer, with means m and v in the basis; Adam for others.

    frequency: number of steps after which the basis is updated.
    """

    beta1: float = leaf(0.95, at_least=0, below=1)
    beta2: float = leaf(0.95, at_least=0, below=1)
    epsilon: float = leaf(1e-8, above=0)
    frequency: int = static(10, at_least=1)
    gradient_degree: ClassVar[int | None] = 0

    def direction(self) -> optax.GradientTransformation:
        def label(params: PyTree) -> PyTree[str]:
            return jax.tree.map(lambda axes: "matrix" if axes.is_layer_matrix else "other", weight_axes(params))

        adam = optax.scale_by_adam(b1=self.beta1, b2=self.beta2, eps=self.epsilon)
        return optax.partition({"matrix": optax.GradientTransformation(init, self.turn), "other": adam}, label)

    def turn(self, updates: PyTree, state: tuple[Int[Array, ""], PyTree], params: PyTree = None) -> tuple[PyTree, Any]:
        """Return Adam's update in the basis of each matrix, and the next state."""
        step, bases = state
        gradients, axes = jax.tree.leaves(updates), jax.tree.leaves(weight_axes(updates))
        states = jax.tree.leaves(bases, is_leaf=lambda node: isinstance(node, Basis))
        rows = zip(axes, gradients, states, strict=True)
        moved = [self.of_matrices(kind.matrices(g), basis, step) for kind, g, basis in rows]
        changes = [kind.from_matrices(u, g.shape) for kind, g, (u, _) in zip(axes, gradients, moved, strict=True)]
        tree = jax.tree.structure(updates)
        return jax.tree.unflatten(tree, changes), (step + 1, jax.tree.unflatten(tree, [basis for _, basis in moved]))

    def of_matrices(
        self, g: Float[Array, "*stacked m n"], basis: Basis, step: Int[Array, ""]
    ) -> tuple[Float[Array, "*stacked m n"], Basis]:
        """Return the update of matrices and their next state, for step number `step` from 0."""
        mean = jnp.where(step > 0, self.beta1 * basis.mean + (1 - self.beta1) * g, 0)
        square = self.beta2 * basis.square + (1 - self.beta2) * jnp.square(into(g, basis))
        square = jnp.where(step > 0, square, 0)
        whole1, whole2 = (1 - jnp.power(beta, jnp.maximum(step, 1)) for beta in (self.beta1, self.beta2))
        u = out_of(into(mean, basis) / whole1 / (jnp.sqrt(square / whole2) + self.epsilon), basis)
        left = self.beta2 * basis.left + (1 - self.beta2) * g @ g.mT
        right = self.beta2 * basis.right + (1 - self.beta2) * g.mT @ g

        def eigenvectors() -> tuple[Array, Array]:
            return jnp.linalg.eigh(left)[1][..., ::-1], jnp.linalg.eigh(right)[1][..., ::-1]

        def iterated() -> tuple[Array, Array]:
            return jnp.linalg.qr(left @ basis.left_basis)[0], jnp.linalg.qr(right @ basis.right_basis)[0]

        when = jnp.where(step == 0, 0, jnp.where(step % self.frequency == 0, 1, 2))
        turned = jax.lax.switch(when, [eigenvectors, iterated, lambda: (basis.left_basis, basis.right_basis)])
        return u, Basis(left, right, turned[0], turned[1], mean, square)


def into(g: Float[Array, "*stacked m n"], basis: Basis) -> Float[Array, "*stacked m n"]:
    """Return Q_Lᵀ G Q_R."""
    return basis.left_basis.mT @ g @ basis.right_basis


def out_of(g: Float[Array, "*stacked m n"], basis: Basis) -> Float[Array, "*stacked m n"]:
    """Return Q_L G Q_Rᵀ."""
    return basis.left_basis @ g @ basis.right_basis.mT


def init(params: PyTree) -> tuple[Int[Array, ""], PyTree]:
    """Return the number of steps, and the state of each weight."""

    def begun(w: Array, axes: Any) -> Basis:
        zeros = jnp.zeros_like(axes.matrices(w))
        sides = [jnp.zeros((*zeros.shape[:-2], size, size), zeros.dtype) for size in zeros.shape[-2:]]
        left, right = (side + jnp.eye(side.shape[-1], dtype=side.dtype) for side in sides)
        return Basis(sides[0], sides[1], left, right, zeros, zeros)

    return jnp.int32(0), jax.tree.map(begun, params, weight_axes(params))


VARIANTS: Mapping[str, Mapping[str, object]] = {"SOAP": {"optimizer": SOAP}}
