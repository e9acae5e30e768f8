"""Attention in two halves, weights and their use: each against a float64 loop, and both against the whole."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn import Causal, Explicit, Padding, dot_product_attention
from flaxformer.nn.dot_product import apply_weights, dot_product_weights, weights_of_logits

B, T, S, D_K, D_V = 3, 5, 7, 11, 13
heads = pytest.mark.parametrize(("N", "K"), [(6, 3), (4, 1), (3, 3)])
MASKS = ["none", "causal", "padding", "per_head", "blind"]
masks = pytest.mark.parametrize("mask", MASKS)
LOGITS = {"plain": {}, "scale and cap": {"scale": 0.61, "logit_cap": 1.7}}
logits = pytest.mark.parametrize("settings", LOGITS.values(), ids=list(LOGITS))
biased = pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])


@functools.cache
def numbers(N, K, batch=B):
    random = np.random.default_rng(N * 100 + K)
    shapes = (batch, T, N, D_K), (batch, S, K, D_K), (batch, S, K, D_V), (batch, N, T, S)
    return tuple(random.normal(size=shape).astype(np.float32) for shape in shapes)


@functools.cache
def masking(name, N):
    """The mask as an argument, and as booleans [B, N, T, S] that restate it."""
    b, n, t, s = np.ogrid[:B, :N, :T, :S]
    everywhere = np.ones((B, N, T, S), bool)
    if name == "none":
        return None, everywhere
    if name == "causal":
        return Causal(), everywhere & (s <= t)
    if name == "padding":
        allowed = s < np.array([3, 7, 1])[b]
        return Padding(jnp.asarray(allowed[:, 0, 0])), everywhere & allowed
    if name == "blind":  # a row of the batch, a query, and a query of one head see nothing
        allowed = everywhere & (b != 1) & (t != 3) & ~((b == 2) & (n == 1) & (t == 0))
    else:
        allowed = (np.random.default_rng(7).random((B, N, T, S)) < 0.4) | (s == t)
    return Explicit(jnp.asarray(allowed)), allowed


def expected_row(row, allowed):
    """softmax over the keys that are allowed, in float64, zeros where none is."""
    exponentials = [math.exp(x) if ok else 0.0 for x, ok in zip(row, allowed, strict=True)]
    return [x / (sum(exponentials) or 1.0) for x in exponentials]


def expected_weights(query, key, allowed, bias=None, scale=None, logit_cap=None):
    weights = np.zeros((*allowed.shape,))
    for b, n, t in np.ndindex(allowed.shape[:-1]):
        k = n // (query.shape[2] // key.shape[2])
        row = key[b, :, k].astype(np.float64) @ query[b, t, n] * (D_K**-0.5 if scale is None else scale)
        row = row if logit_cap is None else logit_cap * np.tanh(row / logit_cap)
        weights[b, n, t] = expected_row(row if bias is None else row + bias[b, n, t], allowed[b, n, t])
    return weights


def expected_mixture(weights, value):
    y = np.zeros((len(weights), T, weights.shape[1], D_V))
    for b, n, t, s in np.ndindex(weights.shape):
        y[b, t, n] += np.float64(weights[b, n, t, s]) * value[b, s, n // (weights.shape[1] // value.shape[2])]
    return y


def keywords(mask, bias, settings):
    return {"mask": mask, "bias": None if bias is None else jnp.asarray(bias), **settings}


@pytest.mark.every(3)
@heads
@masks
@logits
@biased
def test_weights_equal_the_float64_loop_and_rows_sum_to_one_or_nothing(N, K, mask, settings, biased):
    q, k, _, bias = numbers(N, K)
    (mask, allowed), bias = masking(mask, N), bias if biased else None
    weights = np.asarray(dot_product_weights(jnp.asarray(q), jnp.asarray(k), **keywords(mask, bias, settings)))
    np.testing.assert_allclose(weights, expected_weights(q, k, allowed, bias, **settings), atol=2e-6)
    assert (weights[~allowed] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), allowed.any(-1), atol=1e-6)


@pytest.mark.every(3)
@heads
@masks
@logits
@biased
def test_weights_and_their_mixture_are_the_whole(N, K, mask, settings, biased):
    q, k, v, bias = numbers(N, K)
    q, k, v = map(jnp.asarray, (q, k, v))
    mask = masking(mask, N)[0]
    options = keywords(mask, bias if biased else None, settings)
    whole = dot_product_attention(q, k, v, **options)
    np.testing.assert_allclose(apply_weights(dot_product_weights(q, k, **options), v, mask=mask), whole, atol=2e-6)


@heads
def test_a_mixture_is_the_weighted_sum_of_values_whatever_the_weights(N, K):
    """Weights of any sign and any sum: nothing is normalised a second time."""
    *_, v, weights = numbers(N, K)
    wanted = expected_mixture(weights, v)
    np.testing.assert_allclose(apply_weights(jnp.asarray(weights), jnp.asarray(v)), wanted, atol=1e-5)
    # A mask says what is never read; it does not zero weights a second time.
    np.testing.assert_allclose(apply_weights(jnp.asarray(weights), jnp.asarray(v), mask=Causal(S)), wanted, atol=1e-5)


@functools.partial(jax.jit, static_argnames="batch")
def every_way(q, k, v, mask, bias, batch):
    weights = dot_product_weights(q, k, mask=mask, bias=bias)
    one = dot_product_attention(q, k, v, mask=mask, bias=bias)
    return weights, apply_weights(weights, v, mask=mask), one, weights_of_logits(bias, mask, batch)


@pytest.mark.parametrize("batch", [(), (3, 1)])
def test_leading_axes_are_batch(batch):
    q, k, v, bias = (jnp.asarray(x[: math.prod(batch)]).reshape(*batch, *x.shape[1:]) for x in numbers(6, 3))
    allowed = masking("per_head", 6)[1][: math.prod(batch)]
    mask = jnp.asarray(allowed).reshape(*batch, 6, T, S)
    weights, mixed, one, fixed = every_way(q, k, v, mask, bias, batch)
    wanted = expected_weights(*(x[: math.prod(batch)] for x in numbers(6, 3)[:2]), allowed, numbers(6, 3)[3])
    assert weights.shape == (*batch, 6, T, S)
    np.testing.assert_allclose(np.reshape(weights, wanted.shape), wanted, atol=2e-6)
    np.testing.assert_allclose(mixed, one, atol=2e-6)
    np.testing.assert_allclose(fixed, loop_over_rows(bias, mask, batch), atol=2e-6)


@pytest.mark.parametrize("shape", [(S,), (T, S), (T, 1), (6, 1, S), (1, T, S), (B, 1, 1, S), (B, 6, T, S)])
def test_mask_and_bias_broadcast_to_batch_heads_queries_keys(shape):
    q, k, v, _ = numbers(6, 3)
    random = np.random.default_rng(3)
    allowed, bias = random.random(shape) < 0.7, random.normal(size=shape).astype(np.float32)
    full = np.broadcast_to(allowed, (B, 6, T, S)), np.broadcast_to(bias, (B, 6, T, S))
    weights = dot_product_weights(*map(jnp.asarray, (q, k)), mask=jnp.asarray(allowed), bias=jnp.asarray(bias))
    wanted = expected_weights(q, k, *full)
    np.testing.assert_allclose(weights, wanted, atol=2e-6)
    mixed = apply_weights(weights, jnp.asarray(v), mask=jnp.asarray(allowed))
    np.testing.assert_allclose(mixed, expected_mixture(wanted, v), atol=1e-5)


def in_halves(q, k, v, mask):
    return apply_weights(dot_product_weights(q, k, mask=mask), v, mask=mask)


def whole(q, k, v, mask):
    return dot_product_attention(q, k, v, mask=mask)


@functools.partial(jax.jit, static_argnums=0)
def output_and_gradients(attention, q, k, v, mask):
    def loss(q, k, v):
        y = attention(q, k, v, mask)
        return jnp.sin(y).sum(), y

    (_, y), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
    return y, *gradients


@masks
def test_gradients_are_those_of_the_whole_and_nothing_comes_of_seeing_nothing(mask):
    q, k, v = map(jnp.asarray, numbers(6, 3)[:3])
    allowed = masking(mask, 6)[1]
    halves, one = (output_and_gradients(attention, q, k, v, jnp.asarray(allowed)) for attention in (in_halves, whole))
    for actual, wanted in zip(halves, one, strict=True):
        assert np.isfinite(actual).all()
        np.testing.assert_allclose(actual, wanted, atol=3e-6)
    blind = ~allowed.any(-1).swapaxes(1, 2)
    assert (np.asarray(halves[0])[blind] == 0).all()
    assert (np.asarray(halves[1])[blind] == 0).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["padding", "one key of all heads", "one key of one key-value head"])
def test_masked_keys_reach_neither_output_nor_gradient(poison, kind):
    q, k, v, _ = numbers(6, 3)
    allowed = np.ones((B, 6, T, S), bool)
    if kind == "padding":
        allowed = masking("padding", 6)[1]
    elif kind == "one key of all heads":
        allowed[..., 4] = False
    else:
        allowed[:, 2:4, :, 4] = False  # query heads 2 and 3 read key-value head 1
    unseen = ~allowed.reshape(B, 3, 2, T, S).any((2, 3)).swapaxes(1, 2)
    clean, poisoned = (
        output_and_gradients(
            in_halves,
            jnp.asarray(q),
            *(jnp.asarray(np.where(unseen[..., None], np.float32(fill), x)) for x in (k, v)),
            jnp.asarray(allowed),
        )
        for fill in (0, poison)
    )
    for actual, wanted in zip(poisoned, clean, strict=True):
        assert np.isfinite(actual).all()
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_scale_and_logit_cap_may_be_traced(mask):
    q, k, _, bias = numbers(6, 3)
    mask, allowed = masking(mask, 6)
    traces = []

    @jax.jit
    def traced(*arguments, **settings):
        traces.append(None)
        return dot_product_weights(*arguments, **settings)

    for scale, logit_cap in [(0.61, 1.7), (1.9, 0.4)]:
        weights = traced(*map(jnp.asarray, (q, k)), mask=mask, bias=jnp.asarray(bias), scale=scale, logit_cap=logit_cap)
        np.testing.assert_allclose(weights, expected_weights(q, k, allowed, bias, scale, logit_cap), atol=2e-6)
    assert traces == [None]


def test_bfloat16_gives_float32_weights_and_a_bfloat16_mixture():
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in numbers(6, 3)[:3])
    weights, mixed, *_ = every_way(q, k, v, Causal(), jnp.zeros((6, T, S)), (B,))
    exact = [np.asarray(x.astype(jnp.float32)) for x in (q, k, v)]
    wanted = expected_weights(*exact[:2], masking("causal", 6)[1])
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights, wanted, atol=2e-6)
    assert mixed.dtype == jnp.bfloat16
    # Half a unit in the last place: 8 significant bits.
    np.testing.assert_allclose(
        mixed.astype(jnp.float32), expected_mixture(wanted, exact[2]), rtol=2.0**-8 + 1e-5, atol=3e-6
    )


def loop_over_rows(logits, mask, batch):
    """Every row of [*batch, N, T, S] by itself."""
    full = (*batch, *logits.shape[-3:])
    wide = np.broadcast_to(np.asarray(logits, np.float64), full)
    allowed = np.ones(full, bool) if mask is None else np.broadcast_to(np.asarray(mask), full)
    result = np.zeros(full)
    for place in np.ndindex(full[:-1]):
        result[place] = expected_row(wide[place], allowed[place])
    return result


@masks
@pytest.mark.parametrize("own", [False, True], ids=["one pattern", "a pattern each"])
def test_fixed_weights_are_the_softmax_of_their_logits_where_the_mask_allows(mask, own):
    logits = numbers(6, 3)[3] if own else numbers(6, 3)[3][1]
    mask, allowed = masking(mask, 6)
    weights = np.asarray(weights_of_logits(jnp.asarray(logits), mask, (B,)))
    np.testing.assert_allclose(weights, loop_over_rows(logits, allowed, (B,)), atol=2e-6)
    assert (weights[~allowed] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), allowed.any(-1), atol=1e-6)


@pytest.mark.parametrize("batch", [(), (1,), (B,), (2, 3)])
def test_fixed_weights_are_alike_in_every_row_of_any_batch(batch):
    logits = jnp.asarray(numbers(6, 3)[3][1])
    alone = weights_of_logits(logits, Causal(), ())
    weights = weights_of_logits(logits, Causal(), batch)
    assert weights.shape == (*batch, 6, T, S)
    np.testing.assert_array_equal(weights, np.broadcast_to(alone, weights.shape))


def test_fixed_weights_have_finite_gradients_where_nothing_may_be_seen():
    logits, (mask, allowed) = jnp.asarray(numbers(6, 3)[3]), masking("blind", 6)
    gradient = jax.jit(jax.grad(lambda x: jnp.sin(3 * weights_of_logits(x, mask, (B,))).sum()))(logits)
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[~allowed] == 0).all()
    assert (np.abs(np.asarray(gradient)[allowed]) > 0).any()


@pytest.mark.parametrize(("queries", "keys"), [(5, 0), (0, 7), (0, 0)])
@pytest.mark.parametrize("mask", [None, Causal()])
def test_no_keys_give_zeros_and_no_queries_give_nothing(queries, keys, mask):
    q, k, v = jnp.ones((2, queries, 6, 4)), jnp.ones((2, keys, 3, 4)), jnp.ones((2, keys, 3, 5))
    weights, y, _, fixed = every_way(q, k, v, mask, jnp.ones((6, queries, keys)), (2,))
    assert weights.shape == fixed.shape == (2, 6, queries, keys)
    assert y.shape == (2, queries, 6, 5)
    assert not y.any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, v, a: dot_product_weights(q, k[..., :3]), r"differ in width; got query \(2, 5, 6, 4\)"),
        (lambda q, k, v, a: dot_product_weights(q, k[:1]), r"equal leading axes; got query \(2, 5, 6, 4\), key \(1, 7"),
        (lambda q, k, v, a: dot_product_weights(q[..., :5, :], k), "heads that divide the query's"),
        (lambda q, k, v, a: dot_product_weights(q, k, mask=a), "mask has dtype float32; expected bool"),
        (lambda q, k, v, a: weights_of_logits(a, a, (2,)), "mask has dtype float32; expected bool"),
        (lambda q, k, v, a: apply_weights(a, v, mask=a), "mask has dtype float32; expected bool"),
        (lambda q, k, v, a: apply_weights(a, v, mask=Padding(jnp.ones((2, 9), bool))), "for 9 keys; expected 7"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(call, message, monkeypatch):
    for function in (dot_product_weights, weights_of_logits, apply_weights):
        monkeypatch.setitem(call.__globals__, function.__name__, inspect.unwrap(function))
    q, k, v, a = (jnp.ones(shape) for shape in ((2, 5, 6, 4), (2, 7, 3, 4), (2, 7, 3, 5), (2, 6, 5, 7)))
    with pytest.raises(ValueError, match=message):
        call(q, k, v, a)
