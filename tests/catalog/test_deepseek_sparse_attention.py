"""DeepSeek sparse attention and the loss of its indexer equal a loop over queries and keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import applied, weights_of
from naive import D, N, T, assert_attention, attention_loop, differences, output, random_like, sequence, softmax

from flaxformer.catalog import DeepSeekSparseAttention
from flaxformer.nn import Causal
from flaxformer.system.errors import UserError

J, WIDTH = 3, 4


def component(selected, **fields):
    return DeepSeekSparseAttention(heads=N, selected=selected, index_heads=J, index_width=WIDTH, **fields)


def scores_of(weights, x):
    """I[t][s] for s ≤ t."""
    query = np.einsum("td,djk->tjk", x, weights.index_query)
    key, factor = x @ weights.index_key, x @ weights.index_weight
    return [
        [sum(factor[t, j] * max(query[t, j] @ key[s], 0) for j in range(J)) for s in range(t + 1)] for t in range(T)
    ]


def chosen_keys(scores, selected):
    """The places of the highest scores of each query; of equal ones, the first."""
    return [sorted(range(len(row)), key=lambda s, row=row: (-row[s], s))[:selected] for row in scores]


@pytest.mark.parametrize(("selected", "key_value_heads"), [(1, None), (3, None), (3, 1), (T, None)])
def test_it_equals_a_loop_over_the_chosen_keys(selected, key_value_heads):
    def loop(weights, x):
        keys = chosen_keys(scores_of(weights, x), selected)
        return output(weights, attention_loop(weights, x, lambda t, s, head: 0 if s in keys[t] else -np.inf))

    sparse = component(selected, key_value_heads=key_value_heads)
    assert_attention(sparse, loop, weights_of(sparse, D), sequence())


def test_the_loss_is_the_divergence_from_the_attention_and_trains_the_indexer_alone():
    selected, factor = 3, 0.5
    sparse, x = component(selected, loss_weight=factor), sequence()
    weights = weights_of(sparse, D)
    query, key = (
        np.einsum("td,dnh->tnh", x, getattr(weights, name)) + getattr(weights, f"{name}_bias")
        for name in ("query", "key")
    )

    def expected(index_weights):
        scores = scores_of(index_weights, x)
        total = 0.0
        for t, keys in enumerate(chosen_keys(scores, selected)):
            p = np.mean([softmax([query[t, n] @ key[s, n] / np.sqrt(D // N) for s in keys]) for n in range(N)], axis=0)
            total += (p * np.log(p / softmax([scores[t][s] for s in keys]))).sum()
        return factor * total / T

    def loss(weights, x):
        return applied(sparse, weights, x, mask=Causal())[1].losses["index"]

    np.testing.assert_allclose(loss(weights, x), expected(weights), rtol=1e-9)
    with jax.enable_x64(True):
        gradient, of_x = jax.jit(jax.grad(loss, (0, 1)))(jax.tree.map(jnp.asarray, weights), jnp.asarray(x))
    assert not np.any(of_x)
    for name, value in vars(gradient).items():
        if not name.startswith("index") and value is not None:
            assert not np.any(value), name
    direction = random_like(weights, np.random.default_rng(3))
    found = sum((np.asarray(g) * d).sum() for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    of_index = jax.tree.map(np.zeros_like, direction)
    of_index = of_index.replace(**{n: getattr(direction, n) for n in ("index_query", "index_key", "index_weight")})
    np.testing.assert_allclose(found, differences(lambda w: expected(w), (weights,), (of_index,)), rtol=1e-5)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="index_width is 4; expected a multiple"):
        DeepSeekSparseAttention(heads=3, index_width=4)
    with pytest.raises(UserError, match="window is 4; expected None"):
        component(2, window=4)
