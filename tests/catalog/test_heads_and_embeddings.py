"""Heads and embeddings of the catalog equal their equations."""

import jax.numpy as jnp
import numpy as np
from references import assert_equal, drawn

from flaxformer.catalog import FactorisedEmbedding, MixtureOfSoftmaxes

T, D, V, K = 4, 5, 7, 3
X = drawn(x=(T, D))["x"]


def head_weights(head):
    shapes = {"matrix": (D, V), "prior": (D, head.softmaxes), "latent": (D, head.softmaxes, D)}
    return head.Weights(**drawn(**shapes, latent_bias=(head.softmaxes, D)), bias=None, transform=None)


def test_mixture_of_softmaxes_equals_its_equation():
    head = MixtureOfSoftmaxes(softmaxes=K)

    def reference(weights, x):
        rows = []
        for t in range(T):
            prior = jnp.exp(x[t] @ weights.prior)
            mixed = 0
            for k in range(K):
                scores = jnp.exp(jnp.tanh(x[t] @ weights.latent[:, k] + weights.latent_bias[k]) @ weights.matrix)
                mixed = mixed + prior[k] / prior.sum() * scores / scores.sum()
            rows.append(jnp.log(mixed))
        return jnp.stack(rows)

    assert_equal(lambda weights, x: head.project(weights, x, None), reference, head_weights(head), X)
    assert head.can_split


def test_factorised_embedding_equals_a_product():
    inputs, tokens = FactorisedEmbedding(rank=2), np.array([3, 0, 3, 6])
    weights = inputs.Weights(**drawn(rows=(V, 2), up=(2, D)))

    def function(weights):
        return inputs.apply(weights, jnp.asarray(tokens), None, None, {"d_model": D})

    assert_equal(function, lambda weights: jnp.eye(V)[tokens] @ weights.rows @ weights.up, weights)
