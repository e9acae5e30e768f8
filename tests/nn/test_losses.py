"""Losses against float64 sums, and their invariance to micro-batches and masked targets."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn import cross_entropy
from flaxformer.nn.formulations import compiling_for
from flaxformer.nn.losses import count_correct, squared_error

B, T, V = 3, 5, 7


def numbers(*batch, seed=0):
    random = np.random.default_rng(seed)
    logits = random.normal(scale=2, size=(*batch, V)).astype(np.float32)
    return logits, random.integers(0, V, batch), random.uniform(0.1, 2, batch).astype(np.float32)


def expected(logits, targets, weights, smoothing):
    total = count = 0.0
    for place in np.ndindex(targets.shape):
        row = logits[place].astype(np.float64)
        log_p = row - math.log(sum(math.exp(x) for x in row))
        q = np.full(V, smoothing / V)
        q[targets[place]] += 1 - smoothing
        total -= weights[place] * float(q @ log_p)
        count += weights[place]
    return total, count


@pytest.mark.every(2, "long")
@pytest.mark.every(2)
@pytest.mark.parametrize("batch", [(), (T,), (B, T)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [None, 0.0, 0.13])
def test_equals_the_sum_over_tokens(batch, weighted, smoothing):
    logits, targets, weights = numbers(*batch)
    given = jnp.asarray(weights) if weighted else None
    result = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), given, label_smoothing=smoothing)
    wanted = expected(logits, targets, weights if weighted else np.ones(batch), smoothing or 0.0)
    np.testing.assert_allclose(result, wanted, rtol=1e-6)


def test_loss_of_uniform_logits_is_log_vocabulary():
    total, count = cross_entropy(jnp.full((B, T, V), 3.7), jnp.zeros((B, T), int))
    np.testing.assert_allclose(total / count, math.log(V), rtol=1e-6)
    assert count == B * T


@pytest.mark.parametrize("smoothing", [None, 0.13])
def test_shifting_all_logits_does_not_change_the_loss(smoothing):
    logits, targets, _ = numbers(T)
    logits = np.round(logits * 8) / 8  # so that adding 2^14 is exact
    losses = [
        cross_entropy(jnp.asarray(logits + shift), jnp.asarray(targets), label_smoothing=smoothing)[0]
        for shift in (0, 2**14)
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


@pytest.mark.parametrize("smoothing", [None, 0.13])
def test_the_gradient_is_weight_times_p_minus_q(smoothing):
    logits, targets, weights = numbers(B, T)
    grad = jax.grad(
        lambda x: cross_entropy(x, jnp.asarray(targets), jnp.asarray(weights), label_smoothing=smoothing)[0]
    )
    alpha = smoothing or 0.0
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    q = (1 - alpha) * np.eye(V)[targets] + alpha / V
    np.testing.assert_allclose(grad(jnp.asarray(logits)), weights[..., None] * (p - q), atol=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("smoothing", [None, 0.13])
def test_targets_of_weight_zero_do_not_change_loss_or_gradient(poison, smoothing):
    logits, targets, weights = numbers(B, T)
    weights[0, 1] = weights[2] = 0
    poisoned = np.where(weights[..., None] == 0, np.float32(poison), logits)

    def loss(logits, targets, weights):
        return cross_entropy(logits, targets, weights, label_smoothing=smoothing)

    (total, count), grad = jax.value_and_grad(loss, has_aux=True)(*map(jnp.asarray, (poisoned, targets, weights)))
    kept = weights > 0
    np.testing.assert_allclose(
        (total, count), expected(logits[kept], targets[kept], weights[kept], smoothing or 0), rtol=1e-6
    )
    assert np.isfinite(grad).all()
    assert (np.asarray(grad)[~kept] == 0).all()
    assert (np.abs(np.asarray(grad)[kept]).max(-1) > 0).all()


@pytest.mark.parametrize("ignored", [-100, V])
def test_an_ignored_target_may_be_any_id(ignored):
    logits, targets = map(jnp.asarray, numbers(3)[:2])
    weights = jnp.array([1.0, 1.0, 0.0])
    loss, count = cross_entropy(logits, targets.at[2].set(ignored), weights)
    np.testing.assert_array_equal((loss, count), cross_entropy(logits, targets, weights))


def test_the_count_is_exact_for_bfloat16_logits():
    _, count = cross_entropy(jnp.zeros((257, V)), jnp.zeros(257, int), jnp.ones(257, jnp.bfloat16))
    assert float(count) == 257


def test_a_batch_without_targets_has_sum_and_count_zero():
    logits, targets, _ = numbers(T)
    assert cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.zeros(T)) == (0, 0)


@pytest.mark.every(2)
@pytest.mark.parametrize("sizes", [(12,), (6, 6), (1, 11), (5, 4, 3), (1,) * 12])
@pytest.mark.parametrize("smoothing", [None, 0.13])
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(sizes, smoothing):
    """Token counts differ between the parts, so that a mean of means would be wrong."""
    random = np.random.default_rng(3)
    x, (_, targets, _) = random.normal(size=(12, T, 3)).astype(np.float32), numbers(12, T)
    weights = (np.arange(T) < random.integers(0, T + 1, 12)[:, None]).astype(np.float32)
    matrix = jnp.asarray(random.normal(size=(3, V)), jnp.float32)

    @jax.jit
    def part(matrix, x, targets, weights):
        def total(matrix):
            return cross_entropy(jnp.matmul(x, matrix), targets, weights, label_smoothing=smoothing)

        return jax.value_and_grad(total, has_aux=True)(matrix)

    def whole(sizes):
        cuts = np.cumsum(sizes)[:-1]
        pieces = zip(*(np.split(a, cuts) for a in (x, targets, weights)), strict=True)
        (total, count), grad = jax.tree.map(lambda *a: sum(a), *(part(matrix, *map(jnp.asarray, p)) for p in pieces))
        return total / count, grad / count

    counts = [piece.sum() for piece in np.split(weights, np.cumsum(sizes)[:-1])]
    assert len(sizes) == 1 or len(set(counts)) > 1
    for actual, wanted in zip(whole(sizes), whole((12,)), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
    mean, _ = expected(np.asarray(x @ np.asarray(matrix)), targets, weights, smoothing or 0.0)
    np.testing.assert_allclose(whole(sizes)[0], mean / weights.sum(), rtol=1e-5)


def test_label_smoothing_may_be_traced():
    logits, targets, weights = numbers(T)
    arrays = [jnp.asarray(x) for x in (logits, targets, weights)]
    totals, _ = jax.vmap(lambda alpha: cross_entropy(*arrays, label_smoothing=alpha))(jnp.array([0.0, 0.13]))
    np.testing.assert_allclose(totals, [expected(logits, targets, weights, a)[0] for a in (0.0, 0.13)], rtol=1e-6)


def test_bfloat16_logits_are_summed_in_float32():
    logits, targets, _ = numbers(1021)
    logits = jnp.asarray(logits, jnp.bfloat16)
    total, count = cross_entropy(logits, jnp.asarray(targets))
    wanted = expected(np.asarray(logits.astype(jnp.float32)), targets, np.ones(1021), 0.0)
    assert total.dtype == count.dtype == jnp.float32
    np.testing.assert_allclose((total, count), wanted, rtol=1e-5)


def test_count_correct_weights_targets_with_the_highest_logit():
    logits, targets, weights = numbers(B, T)
    targets[:2] = logits[:2].argmax(-1)
    targets[0, 0] = logits[0, 0].argmin()
    hits = [weights[place] for place in np.ndindex(B, T) if max(logits[place]) == logits[place][targets[place]]]
    assert 0 < len(hits) < B * T
    np.testing.assert_allclose(
        count_correct(*map(jnp.asarray, (logits, targets, weights))), (sum(hits), weights.sum()), rtol=1e-6
    )


K = 3


def outputs(*batch, seed=0):
    random = np.random.default_rng(seed)
    y, t = (random.normal(size=(*batch, K)).astype(np.float32) for _ in range(2))
    return y, t, random.uniform(0.1, 2, batch).astype(np.float32)


def expected_squares(y, t, weights):
    total = count = 0.0
    for place in np.ndindex(weights.shape):
        row = [(float(a) - float(b)) ** 2 for a, b in zip(y[place], t[place], strict=True)]
        total += float(weights[place]) * sum(row) / len(row)
        count += float(weights[place])
    return total, count


@pytest.mark.parametrize("batch", [(), (T,), (B, T)])
@pytest.mark.parametrize("weighted", [False, True])
def test_squared_error_equals_the_sum_over_tokens(batch, weighted):
    y, t, weights = outputs(*batch)
    result = squared_error(jnp.asarray(y), jnp.asarray(t), jnp.asarray(weights) if weighted else None)
    wanted = expected_squares(y, t, weights if weighted else np.ones(batch))
    np.testing.assert_allclose(result, wanted, rtol=1e-6)


def test_squared_error_is_the_mean_squared_error_of_torch():
    torch = pytest.importorskip("torch")
    y, t, _ = outputs(B, T)
    total, count = squared_error(jnp.asarray(y), jnp.asarray(t))
    wanted = torch.nn.functional.mse_loss(torch.from_numpy(y), torch.from_numpy(t)).item()
    np.testing.assert_allclose(total / count, wanted, rtol=1e-6)


@jax.jit
@functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
def squares(y, t, weights):
    return squared_error(y, t, weights)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_the_gradient_of_squared_error_is_zero_at_weight_zero(poison):
    y, t, weights = outputs(B, T)
    weights[0, 1] = weights[2] = 0
    hidden = weights[..., None] == 0
    poisoned = [np.where(hidden, np.float32(poison), x) for x in (y, t)]
    (total, count), gradients = squares(*map(jnp.asarray, (*poisoned, weights)))
    counted = expected_squares(np.where(hidden, 0, y), np.where(hidden, 0, t), weights)
    np.testing.assert_allclose((total, count), counted, rtol=1e-6)
    wanted = np.where(hidden, 0, weights[..., None] * 2 * (y.astype(np.float64) - t) / K)
    np.testing.assert_allclose(gradients[0], wanted, atol=1e-6)
    np.testing.assert_allclose(gradients[1], -wanted, atol=1e-6)


def test_squared_error_of_micro_batches_has_the_same_sum_and_count():
    y, t, weights = map(jnp.asarray, outputs(12, T))
    whole = squares(y, t, weights)
    parts = [squares(y[a:b], t[a:b], weights[a:b]) for a, b in ((0, 1), (1, 8), (8, 12))]
    np.testing.assert_allclose([sum(x) for x in zip(*(p[0] for p in parts), strict=True)], whole[0], rtol=1e-6)
    np.testing.assert_allclose(np.concatenate([p[1][0] for p in parts]), whole[1][0], atol=1e-6)


def test_squared_error_without_targets_has_sum_and_count_zero():
    y, t, weights = map(jnp.asarray, outputs(B, T))
    assert squared_error(y, t, jnp.zeros_like(weights)) == (0, 0)


def test_bfloat16_outputs_are_squared_and_summed_in_float32():
    y, t, _ = outputs(1021)
    y = jnp.asarray(y, jnp.bfloat16)
    total, count = squared_error(y, jnp.asarray(t), jnp.ones(1021, jnp.bfloat16))
    assert total.dtype == count.dtype == jnp.float32
    wanted = expected_squares(np.asarray(y.astype(jnp.float32)), t, np.ones(1021))
    np.testing.assert_allclose((total, count), wanted, rtol=1e-5)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("smoothing", [None, 0.13])
def test_loss_and_gradient_for_accelerators_are_those_for_cpus_without_a_scatter(platform, smoothing):
    def value_and_gradient(logits):
        return jax.value_and_grad(lambda x: cross_entropy(x, targets, weights, label_smoothing=smoothing)[0])(logits)

    logits, targets, weights = map(jnp.asarray, numbers(B, T))
    weights = weights.at[0].set(0)
    on_cpu = jax.jit(value_and_gradient).trace(logits)
    with compiling_for(platform):
        elsewhere = jax.jit(value_and_gradient).trace(logits)
    assert "scatter" in str(on_cpu.jaxpr)
    assert "scatter" not in str(elsewhere.jaxpr)
    for one, other in zip(
        *(jax.core.eval_jaxpr(own.jaxpr.jaxpr, own.jaxpr.consts, logits) for own in (on_cpu, elsewhere)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
