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
from flaxformer.model import apply, apply_with_intermediates, beam_search, extend, generate, init, new_cache
from flaxformer.nn.masks import Padding
from flaxformer.nn.positions import rotate
from flaxformer.system.errors import UserError

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


@pytest.mark.long
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


class EveryOther(TokenMixer):
    """Attention among the tokens of even ids, each with those before it, and 0 for others: a causal selection."""

    inner: Attention = part(Attention(heads=2))

    class Weights(Parameters):
        inner: Any = subtree(component="inner")

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Array:
        is_chosen = (context.tokens % 2 == 0) & (True if context.valid is None else context.valid)
        order = jnp.argsort(~is_chosen, axis=-1, stable=True)  # the chosen ones, then the others
        own = context.replace(valid=is_chosen).take(order)
        some = jnp.take_along_axis(x, order[..., None], axis=-2)
        y, _ = self.inner.apply(weights.inner, some, own.replace(mask=own.mask & Padding(own.valid)))
        y = jnp.where(own.valid[..., None], y, 0)
        return jnp.put_along_axis(jnp.zeros_like(x), jnp.broadcast_to(order[..., None], y.shape), y, -2, inplace=False)


def expected_of_even_ids(x, tokens, w):
    """The update of one sequence without padding: a loop over the tokens of even ids."""
    query, key, value = (
        np.einsum("td,dnh->tnh", x, getattr(w.inner, name)) + getattr(w.inner, f"{name}_bias")
        for name in ("query", "key", "value")
    )
    y = np.zeros_like(x)
    for t in (t for t in range(len(x)) if tokens[t] % 2 == 0):
        read = [s for s in range(t + 1) if tokens[s] % 2 == 0]
        for head in range(2):
            z = np.array([query[t, head] @ key[s, head] for s in read]) / np.sqrt(query.shape[-1])
            a = np.exp(z - z.max())
            y[t] += (a / a.sum()) @ value[read, head] @ w.inner.out[head]
        y[t] += w.inner.out_bias
    return y


@pytest.mark.long
def test_a_causal_selection_of_tokens_is_decoded_by_reading_all_tokens_again():
    config = ModelConfig(
        vocabulary=V, layers=2, d_model=D, attention=EveryOther(), feed_forward=Dense(d_ff=6),
        positions=LearnedPositions(max_length=12),
    )  # fmt: skip
    assert list(config.mixers_without_state) == ["attention"]
    dice = np.random.default_rng(0)
    params = init(jax.random.key(0), config)
    params = jax.tree.map(lambda x: x + jnp.asarray(0.3 * dice.standard_normal(x.shape), x.dtype), params)
    _, inside = apply_with_intermediates(params, config, TOKENS[:1])
    own = inside.blocks[1].attention
    w = jax.tree.map(lambda x: np.asarray(x, np.float64), params.blocks[1].attention)
    expected = expected_of_even_ids(np.asarray(own.input[0], np.float64), TOKENS[0].tolist(), w)
    np.testing.assert_allclose(own.output[0], expected, atol=1e-5)

    whole = jax.jit(apply)(params, config, TOKENS, valid=VALID)
    cache, parts = new_cache(params, config, (2,), 12), []
    for here in (slice(0, 4), slice(4, 5), slice(5, 7)):
        output, cache = jax.jit(extend)(params, config, TOKENS[:, here], cache, valid=VALID[:, here])
        parts.append(output)
    np.testing.assert_allclose(jnp.concatenate(parts, 1)[VALID], whole[VALID], atol=1e-5)
    found = generate(params, config, TOKENS[:1], steps=4).tokens
    logits = apply(params, config, jnp.concatenate([TOKENS[:1], found], -1))[:, T - 1 : -1]
    assert logits.argmax(-1).tolist() == found.tolist()
    one = beam_search(params, config, TOKENS[:1], steps=4, beams=1).tokens
    assert one[:, 0].tolist() == found.tolist()


def test_some_of_the_tokens_cannot_be_taken_from_a_state():
    context = Context(query_positions=jnp.arange(2), key_positions=jnp.arange(5))
    with pytest.raises(UserError, match="called for 2 tokens with a state of 5; expected whole sequences"):
        context.take(jnp.asarray([[0, 1]]))
