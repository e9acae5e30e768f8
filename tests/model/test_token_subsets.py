"""A component that is applied to some of the tokens reads and writes these alone, against float64 numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from flaxformer.components import Attention, Context, Dense, LearnedPositions, Positions, Rotary, TokenMixer
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters, param, subtree
from flaxformer.core.struct import part
from flaxformer.model import apply, apply_with_intermediates, init
from flaxformer.nn.positions import rotate

V, D, T, K = 11, 8, 7, 4
TOKENS = jnp.asarray([[3, 1, 4, 1, 5, 9, 2], [0, 7, 6, 5, 0, 3, 5]])
VALID = jnp.asarray([[True] * 7, [False, True, True, True, False, True, True]])


@pytest.fixture(autouse=True)
def broadcasting_as_in_a_users_program():
    with jax.numpy_rank_promotion("allow"):
        yield


class Chosen(TokenMixer):
    """Attention among the K tokens with the highest scores, and 0 for others."""

    inner: Attention = part(Attention(heads=2))

    class Weights(Parameters):
        score: Float[Array, "d_model"] = param(std=0.5, decay=False)
        inner: Any = subtree(component="inner")

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Array:
        score = jnp.where(context.valid, (x * weights.score).sum(-1), -jnp.inf)
        chosen = jnp.sort(jax.lax.top_k(score, K)[1], axis=-1)
        some = jnp.take_along_axis(x, chosen[..., None], axis=-2)
        y, _ = self.inner.apply(weights.inner, some, context.take(chosen))
        places = jnp.broadcast_to(chosen[..., None], y.shape)
        return jnp.put_along_axis(jnp.zeros_like(x), places, y, axis=-2, inplace=False)


def expected_update(x, real, w, scheme, window):
    """The update of one sequence: a loop over the chosen tokens, with the positions that they have in the sequence."""
    score = np.where(real, x @ w.score, -np.inf)
    chosen = np.sort(np.argsort(-score)[:K])
    positions, own = (np.cumsum(real) - 1)[chosen], w.inner
    query, key, value = (
        np.einsum("td,dnh->tnh", x[chosen], getattr(own, name)) + getattr(own, f"{name}_bias")
        for name in ("query", "key", "value")
    )
    if isinstance(scheme, Rotary):
        with jax.enable_x64(True):
            query, key = (np.asarray(rotate(jnp.asarray(one), jnp.asarray(positions))) for one in (query, key))
    y = np.zeros_like(x)
    for t in range(K):
        heads = []
        for head in range(2):
            read = [s for s in range(t + 1) if window is None or positions[t] - positions[s] < window]
            z = np.array([query[t, head] @ key[s, head] for s in read]) / np.sqrt(query.shape[-1])
            a = np.exp(z - z.max())
            heads.append((a / a.sum()) @ value[read, head])
        y[chosen[t]] = np.einsum("nh,nhd->d", np.array(heads), own.out) + own.out_bias
    return y


CASES: dict[str, tuple[Positions, int | None]] = {
    "learned": (LearnedPositions(max_length=9), None),
    "rotary": (Rotary(), None),
    "window": (Rotary(), 3),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_among_some_of_the_tokens(name):
    scheme, window = CASES[name]
    config = ModelConfig(
        vocabulary=V, layers=1, d_model=D, attention=Chosen(inner=Attention(heads=2, window=window)),
        feed_forward=Dense(d_ff=6), positions=scheme,
    )  # fmt: skip
    dice = np.random.default_rng(0)
    params = init(jax.random.key(0), config)
    params = jax.tree.map(lambda x: x + jnp.asarray(0.3 * dice.standard_normal(x.shape), x.dtype), params)
    _, found = apply_with_intermediates(params, config, TOKENS, valid=VALID)
    own = found.blocks[0].attention
    w = jax.tree.map(lambda x: np.asarray(x, np.float64), params.blocks[0].attention)
    for row in range(2):
        expected = expected_update(np.asarray(own.input[row], np.float64), np.asarray(VALID[row]), w, scheme, window)
        np.testing.assert_allclose(own.output[row], expected, atol=1e-5)
    changed = apply(params, config, jnp.where(VALID, TOKENS, 8), valid=VALID)
    np.testing.assert_allclose(changed[VALID], apply(params, config, TOKENS, valid=VALID)[VALID], atol=1e-5)


def test_the_bias_of_some_of_the_tokens():
    index, dice = jnp.asarray([[0, 2, 3], [1, 2, 4]]), np.random.default_rng(0)
    bias = jnp.asarray(dice.standard_normal((2, 5, 5)))  # heads
    context = Context(query_positions=jnp.arange(5), key_positions=jnp.arange(5), bias=bias)
    some = context.take(index)
    for row, own in enumerate(index.tolist()):
        np.testing.assert_array_equal(some.bias[row], np.asarray(bias)[:, own][:, :, own])
    assert some.query_positions.tolist() == index.tolist()
    assert (some.mask, some.valid, some.tokens) == (None, None, None)
