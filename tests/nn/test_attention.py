"""Attention against a float64 loop over batch, head and query, and the laws that masks promise."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn import Causal, Explicit, Padding, attend, dot_product_attention
from flaxformer.nn.attention import attention_weights, masked_softmax

B, T, S, D_K, D_V = 5, 7, 11, 13, 17
HEADS = [(6, 3), (4, 1), (3, 3)]
MASKS = ["none", "causal", "padding", "per_head"]
LOGITS = {
    "plain": {},
    "bias": {"bias": True},
    "scale_and_cap": {"scale": 0.61, "logit_cap": 1.7},
    "bias_scale_and_cap": {"bias": True, "scale": 0.61, "logit_cap": 1.7},
}
implementations = pytest.mark.parametrize("implementation", ["reference", "xla"])
masks = pytest.mark.parametrize("mask", MASKS)
unchecked = inspect.unwrap(dot_product_attention)


def oracle(query, key, value, allowed=None, bias=None, scale=None, logit_cap=None):
    """One query at a time, in float64: a weighted mean of the values that the query may attend to."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    (batches, queries, heads, d_k), keys, groups = query.shape, key.shape[1], key.shape[2]
    result = np.zeros((batches, queries, heads, value.shape[-1]))
    for b in range(batches):
        for n in range(heads):
            k = n // (heads // groups)
            for t in range(queries):
                seen = [s for s in range(keys) if allowed is None or allowed[b, n, t, s]]
                if not seen:
                    continue
                logits = (key[b, seen, k] @ query[b, t, n]) * (1 / math.sqrt(d_k) if scale is None else scale)
                if logit_cap is not None:
                    logits = logit_cap * np.tanh(logits / logit_cap)
                if bias is not None:
                    logits = logits + bias[b, n, t, seen]
                exponentials = np.exp(logits - logits.max())
                result[b, t, n] = exponentials @ value[b, seen, k] / exponentials.sum()
    return result


@functools.cache
def numbers(N, K, batch=B):
    random = np.random.default_rng(N * 100 + K)
    shapes = (batch, T, N, D_K), (batch, S, K, D_K), (batch, S, K, D_V), (batch, N, T, S)
    return tuple(random.normal(size=shape).astype(np.float32) for shape in shapes)


@functools.cache
def masking(name, N, batch=B):
    """The mask as an argument, and as booleans [B, N, T, S] that restate it; every query sees a key."""
    random = np.random.default_rng(7)
    b, _, t, s = np.ogrid[:batch, :N, :T, :S]
    if name == "none":
        return None, None
    if name == "causal":
        return Causal(), np.broadcast_to(s <= t, (batch, N, T, S))
    if name == "padding":
        lengths = np.array([3, 11, 1, 7, 5])[:batch]
        allowed = s < lengths[b]
        return Padding(jnp.asarray(allowed[:, 0, 0])), np.broadcast_to(allowed, (batch, N, T, S))
    allowed = (random.random((batch, N, T, S)) < 0.4) | (s == t)
    return Explicit(jnp.asarray(allowed)), allowed


def run(implementation, q, k, v, mask, bias=None, **settings):
    q, k, v, bias = (None if x is None else jnp.asarray(x) for x in (q, k, v, bias))
    return dot_product_attention(q, k, v, mask=mask, bias=bias, implementation=implementation, **settings)


@pytest.mark.every(2, "long")
@pytest.mark.every(2)
@implementations
@masks
@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize(("N", "K"), HEADS)
def test_equals_the_float64_loop(implementation, mask, logits, N, K):
    q, k, v, bias = numbers(N, K)
    mask, allowed = masking(mask, N)
    settings = LOGITS[logits] | ({"bias": bias} if "bias" in LOGITS[logits] else {})
    expected = oracle(q, k, v, allowed, **settings)
    np.testing.assert_allclose(run(implementation, q, k, v, mask, **settings), expected, atol=3e-6)


@implementations
@pytest.mark.parametrize("mask", ["causal", "per_head"])
def test_scale_and_logit_cap_may_be_traced(implementation, mask):
    q, k, v, bias = numbers(6, 3)
    mask, allowed = masking(mask, 6)
    traces = []

    @jax.jit
    def traced(*arguments, **settings):
        traces.append(None)
        return run(implementation, *arguments, **settings)

    for scale, logit_cap in [(0.61, 1.7), (1.9, 0.4)]:
        result = traced(q, k, v, mask, bias, scale=scale, logit_cap=logit_cap)
        expected = oracle(q, k, v, allowed, bias, scale, logit_cap)
        np.testing.assert_allclose(result, expected, atol=3e-6)
    assert traces == [None]


@masks
def test_attend_is_one_head_of_the_loop(mask):
    q, k, v, bias = numbers(3, 3)
    allowed = masking(mask, 3)[1]
    expected = oracle(q, k, v, allowed, bias, 0.61, 1.7)[2, :, 1]
    one = None if allowed is None else jnp.asarray(allowed[2, 1])
    q, k, v, bias = (jnp.asarray(x) for x in (q[2, :, 1], k[2, :, 1], v[2, :, 1], bias[2, 1]))
    np.testing.assert_allclose(attend(q, k, v, one, bias, scale=0.61, logit_cap=1.7), expected, atol=3e-6)


@implementations
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_leading_axes_are_batch(implementation, batch):
    q, k, v, bias = (x[: math.prod(batch)] for x in numbers(6, 3, batch=6))
    allowed = masking("per_head", 6, batch=6)[1][: math.prod(batch)]
    expected = oracle(q, k, v, allowed, bias).reshape(*batch, T, 6, D_V)
    q, k, v, bias, allowed = (jnp.asarray(x).reshape(*batch, *x.shape[1:]) for x in (q, k, v, bias, allowed))
    result = dot_product_attention(q, k, v, mask=allowed, bias=bias, implementation=implementation)
    np.testing.assert_allclose(result, expected, atol=3e-6)


@implementations
@pytest.mark.parametrize("shape", [(S,), (T, S), (T, 1), (6, 1, S), (1, T, S), (B, 1, 1, S), (B, 6, T, S)])
def test_mask_and_bias_broadcast_to_batch_heads_queries_keys(implementation, shape):
    q, k, v, _ = numbers(6, 3)
    random = np.random.default_rng(3)
    allowed, bias = random.random(shape) < 0.7, random.normal(size=shape).astype(np.float32)
    expected = oracle(q, k, v, *(np.broadcast_to(x, (B, 6, T, S)) for x in (allowed, bias)))
    np.testing.assert_allclose(run(implementation, q, k, v, jnp.asarray(allowed), bias=bias), expected, atol=3e-6)


@pytest.mark.every(2, "long")
@masks
@pytest.mark.parametrize(("N", "K"), HEADS)
def test_auto_equals_jax_nn(mask, N, K):
    q, k, v, bias = numbers(N, K)
    mask, allowed = masking(mask, N)
    theirs = {"bias": jnp.asarray(bias), "scale": 0.61, "mask": None if allowed is None else jnp.asarray(allowed)}
    # jax.nn wants one width for keys and values.
    q, k, v = (jnp.asarray(x[..., :D_K]) for x in (q, k, v))
    expected = jax.nn.dot_product_attention(q, k, v, **theirs, implementation="xla")
    result = dot_product_attention(q, k, v, mask=mask, bias=theirs["bias"], scale=0.61)
    np.testing.assert_allclose(result, expected, atol=3e-6)


@pytest.mark.parametrize("mask", ["none", "per_head"])
def test_gradients_are_the_slopes_of_the_float64_loop(mask):
    q, k, v, bias = (x.astype(np.float64) for x in numbers(6, 3, batch=2))
    mask, allowed = masking(mask, 6, batch=2)
    inputs = {"query": q, "key": k, "value": v, "bias": bias} | {
        "scale": np.float64(0.61),
        "logit_cap": np.float64(1.7),
    }
    random = np.random.default_rng(1)
    cotangent = random.normal(size=(2, T, 6, D_V))
    with jax.enable_x64(True):

        @functools.partial(jax.jit, static_argnums=1)
        @jax.grad
        def gradients(x, implementation):
            return (cotangent * dot_product_attention(**x, mask=mask, implementation=implementation)).sum()

        reference, xla = (jax.device_get(gradients(inputs, name)) for name in ("reference", "xla"))

    for name, x in inputs.items():
        np.testing.assert_allclose(reference[name], xla[name], rtol=1e-9, atol=1e-11)
        direction = random.normal(size=x.shape)
        ahead, behind = (
            (cotangent * oracle(**inputs | {name: x + step * direction}, allowed=allowed)).sum()
            for step in (1e-5, -1e-5)
        )
        slope = (ahead - behind) / 2e-5
        np.testing.assert_allclose((xla[name] * direction).sum(), slope, rtol=1e-7, atol=1e-8, err_msg=name)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradients(implementation, q, k, v, mask):
    def loss(q, k, v):
        y = dot_product_attention(q, k, v, mask=mask, implementation=implementation)
        return jnp.sin(y).sum(), y

    (_, y), grads = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
    return y, grads


def hidden_from(kind, N):
    """Booleans [B, N, T, S] under which some queries see nothing; rows marked True are those."""
    allowed = np.ones((B, N, T, S), bool)
    if kind == "one query":
        allowed[:, :, 2] = False
    elif kind == "one query of one head":
        allowed[3, 1, 4] = False
    elif kind == "a batch row":
        allowed[1] = False
    else:
        allowed[:] = False
    return allowed, ~allowed.any(-1).swapaxes(1, 2)


@implementations
@pytest.mark.parametrize("kind", ["one query", "one query of one head", "a batch row", "everything"])
def test_a_query_that_sees_nothing_gets_zeros_and_gives_no_gradient(implementation, kind):
    q, k, v, _ = numbers(6, 3)
    allowed, blind = hidden_from(kind, 6)
    y, grads = loss_and_gradients(implementation, q, k, v, jnp.asarray(allowed))
    assert (np.asarray(y)[blind] == 0).all()
    assert (np.asarray(grads[0])[blind] == 0).all()
    assert all(np.isfinite(g).all() for g in grads)
    np.testing.assert_allclose(y, oracle(q, k, v, allowed), atol=3e-6)


@implementations
def test_a_padding_row_without_any_token_is_zeros_with_finite_gradients(implementation):
    q, k, v, _ = numbers(6, 3)
    valid = np.arange(S) < np.array([3, 0, 11, 0, 1])[:, None]
    y, grads = loss_and_gradients(implementation, q, k, v, Causal() & Padding(jnp.asarray(valid)))
    empty = ~valid.any(-1)
    assert (np.asarray(y)[empty] == 0).all()
    assert (np.abs(np.asarray(y)[~empty]) > 0).all()
    for g in grads:
        assert np.isfinite(g).all()
        assert (np.asarray(g)[empty] == 0).all()


def test_masked_softmax_of_a_row_that_sees_nothing_is_flat_and_makes_no_nan_on_the_way():
    x, mask = jnp.array([[1e30, -1e30, 3.0], [1.0, 2.0, 3.0]]), jnp.array([[False] * 3, [True, False, True]])
    with jax.debug_nans(True):
        y, pull = jax.vjp(lambda x: masked_softmax(x, mask), x)
        (grad,) = pull(jnp.arange(6.0).reshape(2, 3))
    np.testing.assert_allclose(y, [[0, 0, 0], [1 / (1 + math.e**2), 0, 1 / (1 + math.e**-2)]], rtol=1e-6)
    assert (np.asarray(grad[0]) == 0).all()
    assert np.asarray(grad[1])[1] == 0
    assert np.isfinite(grad).all()


@implementations
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["padding", "one key of all heads", "one key of one key-value head"])
def test_masked_keys_reach_neither_output_nor_gradient(implementation, poison, kind):
    q, k, v, _ = numbers(6, 3)
    allowed = np.ones((B, 6, T, S), bool)
    if kind == "padding":
        allowed = np.array(masking("padding", 6)[1])
    elif kind == "one key of all heads":
        allowed[..., 4] = False
    else:
        allowed[:, 2:4, :, 4] = False  # query heads 2 and 3 read key-value head 1
    unseen = ~allowed.reshape(B, 3, 2, T, S).any((2, 3)).swapaxes(1, 2)
    fill = [[np.where(unseen[..., None], x, y) for y in (k, v)] for x in (poison, 0)]
    poisoned, zeroed = (loss_and_gradients(implementation, q, *kv, jnp.asarray(allowed)) for kv in fill)
    for actual, expected in zip(jax.tree.leaves(poisoned), jax.tree.leaves(zeroed), strict=True):
        assert np.isfinite(actual).all()
        np.testing.assert_array_equal(actual, expected)


def shaped(*shape, dtype=np.float32):
    return jnp.ones(shape, dtype)


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ([(7, 6, 4), (11, 3, 4), (11, 3, 5)], {"mask": shaped(7, 11)}, "mask has dtype float32; expected bool"),
        ([(7, 6, 4), (11, 3, 4), (11, 3, 5)], {"mask": shaped(7, 11, dtype=int)}, "mask has dtype int32"),
        ([(7, 6, 4), (11, 3, 4), (11, 3, 5)], {"mask": np.ones((7, 11))}, "mask has dtype float64"),
        ([(7, 6, 4), (11, 3, 4), (11, 3, 5)], {"mask": Explicit(shaped(7, 11))}, "mask has dtype float32"),
        ([(7, 6, 4), (11, 3, 4), (11, 3, 5)], {"mask": Padding(shaped(9, dtype=bool))}, "for 9 keys; expected 11"),
        ([(7, 6, 4), (11, 3, 5), (11, 3, 5)], {}, r"differ in width; got query \(7, 6, 4\), key \(11, 3, 5\)"),
        ([(7, 6, 4), (11, 4, 4), (11, 4, 5)], {}, r"heads that divide the query's; got query \(7, 6, 4\)"),
        ([(7, 6, 4), (11, 3, 4), (13, 3, 5)], {}, r"equal length and heads.*value \(13, 3, 5\)"),
        ([(7, 6, 4), (11, 3, 4), (11, 2, 5)], {}, "equal length and heads"),
        ([(2, 7, 6, 4), (3, 11, 3, 4), (2, 11, 3, 5)], {}, r"equal leading axes; got query \(2, 7, 6, 4\)"),
        ([(7, 4), (11, 4), (11, 5)], {}, r"expected \[..., length, heads, width\]"),
        ([(7, 6, 4), (11, 3, 4), (11, 3, 5)], {"implementation": "flash"}, "'flash'; expected one of reference, cudnn"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(shapes, options, message):
    with pytest.raises(ValueError, match=message):
        unchecked(*(shaped(*shape) for shape in shapes), **options)


@implementations
@pytest.mark.parametrize(("queries", "keys"), [(7, 0), (0, 11), (0, 0)])
@pytest.mark.parametrize("mask", [None, Causal()])
def test_no_keys_give_zeros_and_no_queries_give_nothing(implementation, queries, keys, mask):
    shapes = (2, queries, 6, 4), (2, keys, 3, 4), (2, keys, 3, 5)
    y = dot_product_attention(*(shaped(*shape) for shape in shapes), mask=mask, implementation=implementation)
    assert y.shape == (2, queries, 6, 5)
    assert not y.any()


@implementations
def test_composes_with_every_transformation(implementation):
    q, k, v, _ = map(jnp.asarray, numbers(6, 3))
    call = functools.partial(dot_product_attention, mask=Causal(), implementation=implementation)
    expected = call(q, k, v)
    close = functools.partial(np.testing.assert_allclose, desired=expected, atol=3e-6)
    close(jax.jit(call)(q, k, v))
    close(jax.vmap(call, in_axes=(1, 1, 1), out_axes=0)(*(jnp.swapaxes(x, 0, 1) for x in (q, k, v))))
    close(jax.lax.map(lambda x: call(*x), (q, k, v)))
    assert jax.eval_shape(call, q, k, v) == jax.ShapeDtypeStruct((B, T, 6, D_V), jnp.float32)
    slope = jax.grad(lambda q, k, v: jnp.sin(call(q, k, v)).sum())
    np.testing.assert_allclose(jax.jit(jax.vmap(slope))(q, k, v), jax.jit(slope)(q, k, v), atol=3e-6)


@implementations
def test_masks_vmap_with_the_batch(implementation):
    q, k, v, _ = map(jnp.asarray, numbers(6, 3))
    padding = masking("padding", 6)[0]
    rows = jax.vmap(lambda q, k, v, m: dot_product_attention(q, k, v, mask=m, implementation=implementation))
    expected = dot_product_attention(q, k, v, mask=padding, implementation=implementation)
    np.testing.assert_allclose(rows(q, k, v, padding), expected, atol=3e-6)


@implementations
@pytest.mark.parametrize("setting", ["scale", "logit_cap"])
def test_scale_and_logit_cap_can_be_vmapped(implementation, setting):
    q, k, v, _ = numbers(6, 3, batch=2)
    values = np.array([0.3, 0.61, 1.9], np.float32)
    call = functools.partial(dot_product_attention, *map(jnp.asarray, (q, k, v)), implementation=implementation)
    result = jax.vmap(lambda x: call(**{setting: x}))(jnp.asarray(values))
    np.testing.assert_allclose(result, [oracle(q, k, v, **{setting: float(x)}) for x in values], atol=3e-6)


@implementations
def test_later_keys_never_reach_earlier_queries_under_a_causal_mask(implementation):
    q, k, v, _ = numbers(6, 3)
    changed = [np.concatenate([x[:, :4], x[:, 4:] + 1], axis=1) for x in (k, v)]
    before, after = (run(implementation, q, *kv, Causal()) for kv in ((k, v), changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (np.abs(before[:, 4:] - after[:, 4:]).max((0, 2, 3)) > 1e-3).all()


@implementations
@pytest.mark.parametrize("mask", ["none", "per_head"])
@pytest.mark.parametrize("shift", [512.0, -512.0])
def test_a_shift_of_all_logits_changes_nothing_however_large(implementation, mask, shift):
    q, k, v, bias = numbers(6, 3)
    mask = masking(mask, 6)[0]
    results = [run(implementation, q, k, v, mask, x) for x in (bias, bias + np.float32(shift))]
    np.testing.assert_allclose(results[1], results[0], atol=1e-3)


def bfloat16(*arrays):
    return [jnp.asarray(x, jnp.bfloat16) for x in arrays]


@implementations
@masks
def test_bfloat16_is_the_float32_result_rounded_once(implementation, mask):
    q, k, v = bfloat16(*numbers(6, 3)[:3])
    mask, allowed = masking(mask, 6)
    result = dot_product_attention(q, k, v, mask=mask, implementation=implementation)
    exact = oracle(*(x.astype(jnp.float32) for x in (q, k, v)), allowed)
    assert result.dtype == jnp.bfloat16
    # Half a unit in the last place: 8 significant bits.
    np.testing.assert_allclose(result.astype(jnp.float32), exact, rtol=2.0**-8 + 1e-5, atol=3e-6)
    logits = jnp.einsum("btngh,bsnh->bngts", q.reshape(B, T, 3, 2, D_K), k) * D_K**-0.5
    logits = logits if allowed is None else jnp.where(allowed.reshape(B, 3, 2, T, S), logits, -jnp.inf)
    naive = jnp.einsum("bngts,bsnh->btngh", jax.nn.softmax(logits), v).reshape(exact.shape)
    errors = [np.abs(x.astype(jnp.float32) - exact).mean() for x in (result, naive)]
    assert errors[0] < 0.75 * errors[1]


def test_bfloat16_weights_sum_to_one_over_a_long_row():
    length = 4099
    q, k = bfloat16(np.random.default_rng(0).normal(size=(3, D_K)), np.zeros((length, D_K)))
    weights = attention_weights(q, k, jnp.ones((3, length), bool), scale=1.0)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights, np.full((3, length), 1 / length), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(weights, np.float64).sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("mask", [None, jnp.ones((2, 4099), bool)], ids=["none", "all"])
def test_masked_softmax_of_bfloat16_logits_is_float32(mask):
    weights = masked_softmax(jnp.zeros((2, 4099), jnp.bfloat16), mask)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights, np.full((2, 4099), 1 / 4099), rtol=1e-6)
