"""Norms with statistics over several tokens, against float64 loops and torch, with and without padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn import layer_norm
from flaxformer.nn.norms import batch_norm, batch_statistics, moments, running_statistics, sequence_norm

B, T, D = 3, 5, 7
LENGTHS = np.array([5, 2, 3])
VALID = np.arange(T) < LENGTHS[:, None]
statistics = jax.jit(batch_statistics)
masked = pytest.mark.parametrize("valid", [None, VALID], ids=["all", "valid"])


def numbers(*shape, seed=0):
    random = np.random.default_rng(seed)
    arrays = random.normal(1.3, 2.1, shape), random.normal(1, 0.5, shape[-1]), random.normal(size=shape[-1])
    return tuple(x.astype(np.float32) for x in arrays)


def given(*arrays):
    return [None if x is None else jnp.asarray(x) for x in arrays]


def mean_and_variance(vectors):
    """Return mean and variance per feature over a list of vectors, in float64."""
    vectors = [np.asarray(x, np.float64) for x in vectors]
    mean = sum(vectors) / len(vectors)
    return mean, sum((x - mean) ** 2 for x in vectors) / len(vectors)


def tokens(x, valid=None):
    return [x[place] for place in np.ndindex(x.shape[:-1]) if valid is None or valid[place]]


def expected_over_sequence(x, gain=1.0, bias=0.0, valid=None, epsilon=1e-5):
    """Return the norm per sequence, with μ and σ² over all entries of its valid tokens."""
    y = np.zeros(x.shape)
    for b in range(len(x)):
        seen = np.concatenate(tokens(x[b], None if valid is None else valid[b])).astype(np.float64)
        mean = sum(seen) / len(seen)
        y[b] = (x[b] - mean) / np.sqrt(sum((seen - mean) ** 2) / len(seen) + epsilon) * gain + bias
    return y


@masked
@pytest.mark.parametrize("affine", ["none", "gain", "bias", "gain and bias"])
@pytest.mark.parametrize("epsilon", [None, 0.3])
def test_sequence_norm_equals_the_equation(valid, affine, epsilon):
    x, gain, bias = numbers(B, T, D)
    gain, bias = gain if "gain" in affine else None, bias if "bias" in affine else None
    settings = {} if epsilon is None else {"epsilon": epsilon}
    result = sequence_norm(*given(x, gain, bias), valid=given(valid)[0], **settings)
    assert result.dtype == jnp.float32
    one, zero = np.float64(1), np.float64(0)
    wanted = expected_over_sequence(
        x, one if gain is None else gain, zero if bias is None else bias, valid, epsilon or 1e-5
    )
    np.testing.assert_allclose(result, wanted, atol=3e-6)


def test_sequence_norm_accepts_a_sequence_without_batch_axis():
    x, gain, bias = numbers(B, T, D)
    rows = [sequence_norm(*given(x[b], gain, bias), valid=jnp.asarray(VALID[b])) for b in range(B)]
    np.testing.assert_allclose(rows, expected_over_sequence(x, gain, bias, VALID), atol=3e-6)


def test_sequence_norm_is_the_layer_norm_of_torch_over_length_and_width():
    torch = pytest.importorskip("torch")
    x, *_ = numbers(B, T, D)
    wanted = torch.nn.functional.layer_norm(torch.from_numpy(x), (T, D)).numpy()
    np.testing.assert_allclose(sequence_norm(jnp.asarray(x)), wanted, atol=3e-6)


def sensitivity(norm):
    """Return |d y[t] / d x[t']|, [T, T']."""
    (x,) = given(numbers(T, D)[0])
    return np.asarray(jnp.abs(jax.jit(jax.jacrev(norm))(x)).sum((1, 3)))


def test_sequence_norm_depends_on_later_tokens_and_layer_norm_does_not():
    """With this counter-example, a causal model can read the tokens that it predicts."""
    leaking, tight = sensitivity(sequence_norm), sensitivity(layer_norm)
    assert (leaking > 1e-3).all()
    np.testing.assert_array_equal(tight > 1e-3, np.eye(T, dtype=bool))
    assert (tight[~np.eye(T, dtype=bool)] == 0).all()


def test_batch_statistics_depend_on_later_tokens_and_running_ones_do_not():
    def by_batch(x):
        mean, variance, _ = batch_statistics(x)
        return batch_norm(x, mean, variance)

    assert (sensitivity(by_batch) > 1e-3).all()
    by_running = sensitivity(lambda x: batch_norm(x, jnp.full(D, 0.3), jnp.full(D, 2.0)))
    np.testing.assert_array_equal(by_running > 0, np.eye(T, dtype=bool))


@masked
def test_batch_statistics_are_per_feature_over_all_tokens(valid):
    x, *_ = numbers(B, T, D)
    mean, variance, count = statistics(*given(x, valid))
    wanted = mean_and_variance(tokens(x, valid))
    np.testing.assert_allclose(mean, wanted[0], atol=1e-6)
    np.testing.assert_allclose(variance, wanted[1], rtol=1e-5)
    assert count == (B * T if valid is None else LENGTHS.sum())
    assert mean.dtype == variance.dtype == count.dtype == jnp.float32


@pytest.mark.parametrize("shape", [(11,), (3, 5), (2, 3, 4)])
def test_batch_statistics_treat_batch_and_time_alike(shape):
    x, *_ = numbers(*shape, D)
    wanted = mean_and_variance(tokens(x))
    mean, variance, count = batch_statistics(jnp.asarray(x))
    np.testing.assert_allclose(mean, wanted[0], atol=1e-6)
    np.testing.assert_allclose(variance, wanted[1], rtol=1e-5)
    assert count == np.prod(shape)


@pytest.mark.parametrize("affine", ["none", "gain", "bias", "gain and bias"])
@pytest.mark.parametrize("epsilon", [None, 0.3])
@pytest.mark.parametrize("batch", [(), (B, T)])
def test_batch_norm_with_given_statistics_equals_the_equation(affine, epsilon, batch):
    x, gain, bias = numbers(*batch, D)
    mean, variance = numbers(D)[0], np.abs(numbers(D, seed=1)[0]) + 0.1
    gain, bias = gain if "gain" in affine else None, bias if "bias" in affine else None
    settings = {} if epsilon is None else {"epsilon": epsilon}
    result = batch_norm(*given(x, mean, variance, gain, bias), **settings)
    wanted = (x.astype(np.float64) - mean) / np.sqrt(variance + np.float64(epsilon or 1e-5))
    wanted = wanted * (1 if gain is None else gain) + (0 if bias is None else bias)
    np.testing.assert_allclose(result, wanted, atol=3e-6)


@pytest.mark.parametrize("momentum", [0.1, 0.37])
def test_batch_norm_training_and_evaluation_equal_torch(momentum):
    """Outputs, gradients and running statistics of three steps of BatchNorm1d, and its evaluation after them."""
    torch = pytest.importorskip("torch")
    theirs = torch.nn.BatchNorm1d(D, momentum=momentum, dtype=torch.float64)
    x, gain, bias = numbers(B, T, D)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(gain))
        theirs.bias.copy_(torch.from_numpy(bias))

    @jax.jit
    def step(x, gain, bias, running):
        batch = batch_statistics(x)
        return batch_norm(x, *batch[:2], gain, bias), running_statistics(running, batch, momentum)

    running = jnp.zeros(D), jnp.ones(D)
    for seed in range(3):
        x, cotangent = numbers(B, T, D, seed=seed)[0] + seed, numbers(B, T, D, seed=10)[0]
        given_to_torch = torch.tensor(x.reshape(-1, D), dtype=torch.float64, requires_grad=True)
        wanted = theirs(given_to_torch)
        theirs.zero_grad()
        wanted.backward(torch.tensor(cotangent.reshape(-1, D), dtype=torch.float64))
        y, pull, moved = jax.vjp(lambda *x, now=running: step(*x, now), *given(x, gain, bias), has_aux=True)
        np.testing.assert_allclose(y.reshape(-1, D), wanted.detach().numpy(), atol=1e-5)
        leaves = given_to_torch.grad.reshape(B, T, D), theirs.weight.grad, theirs.bias.grad
        for actual, leaf in zip(pull(jnp.asarray(cotangent)), leaves, strict=True):
            np.testing.assert_allclose(actual, leaf.numpy(), atol=3e-5)
        running = moved
        np.testing.assert_allclose(running[0], theirs.running_mean.numpy(), atol=1e-6)
        np.testing.assert_allclose(running[1], theirs.running_var.numpy(), rtol=1e-5)
    theirs.eval()
    wanted = theirs(torch.tensor(x.reshape(-1, D), dtype=torch.float64)).detach().numpy()
    np.testing.assert_allclose(batch_norm(*given(x), *running, *given(gain, bias)).reshape(-1, D), wanted, atol=1e-5)


def test_running_statistics_are_updated_with_the_unbiased_variance():
    old, batch = given(numbers(D)[0], numbers(D)[1]), given(numbers(D, seed=1)[0], numbers(D, seed=2)[0], 5.0)
    for momentum in (0.0, 0.25, 1.0):
        mean, variance = running_statistics(tuple(old), tuple(batch), momentum)
        for d in range(D):
            wanted = (1 - momentum) * float(old[1][d]) + momentum * 5 / 4 * float(batch[1][d])
            np.testing.assert_allclose(variance[d], wanted, rtol=1e-5)
            np.testing.assert_allclose(
                mean[d], (1 - momentum) * float(old[0][d]) + momentum * float(batch[0][d]), rtol=1e-5
            )


def test_running_statistics_converge_for_a_repeated_batch():
    batch = statistics(jnp.asarray(numbers(B, T, D)[0]))
    running = jnp.zeros(D), jnp.ones(D)
    for _ in range(60):
        running = running_statistics(running, batch, 0.3)
    np.testing.assert_allclose(running[0], batch[0], rtol=1e-5)
    np.testing.assert_allclose(running[1], np.asarray(batch[1]) * (B * T) / (B * T - 1), rtol=1e-5)


@pytest.mark.parametrize("count", [0.0, 1.0])
def test_running_statistics_of_one_valid_token_are_finite(count):
    zeros = jnp.zeros(D)
    mean, variance = running_statistics((zeros, jnp.ones(D)), (zeros, zeros, jnp.asarray(count)), 0.1)
    np.testing.assert_allclose(mean, np.zeros(D))
    np.testing.assert_allclose(variance, np.full(D, 0.9), rtol=1e-6)


def by_sequence(x, valid):
    return sequence_norm(x, valid=valid)


def by_batch(x, valid):
    mean, variance, _ = batch_statistics(x, valid)
    return batch_norm(x, mean, variance)


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradient(norm, x, valid, cotangent):
    """Return value and gradient of a loss of the valid tokens."""
    read = jnp.where(valid[..., None], cotangent, 0)
    return jax.value_and_grad(lambda x: (read * jnp.where(valid[..., None], norm(x, valid), 0)).sum())(x)


def filled(x, fill):
    return jnp.asarray(np.where(VALID[..., None], x, np.float32(fill)))


@pytest.mark.parametrize("axes", [(0, 1), (-2, -1)], ids=["batch", "sequence"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e6])
def test_invalid_tokens_do_not_change_statistics_or_their_gradients(axes, poison):
    x, *_ = numbers(B, T, D)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(x):
        result = moments(x, axes, jnp.asarray(VALID))
        return sum((jnp.sin(y) * (1 + jnp.arange(y.size).reshape(y.shape))).sum() for y in result), result

    clean, poisoned = loss(filled(x, 0.0)), loss(filled(x, poison))
    for actual, wanted in zip(jax.tree.leaves(poisoned), jax.tree.leaves(clean), strict=True):
        assert np.isfinite(actual).all()
        np.testing.assert_array_equal(actual, wanted)
    gradient = np.asarray(poisoned[1])
    assert (gradient[~VALID] == 0).all()
    assert (np.abs(gradient[VALID]).max(-1) > 1e-3).all()


@pytest.mark.parametrize("norm", [by_sequence, by_batch])
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e6])
def test_invalid_tokens_do_not_change_valid_ones(norm, poison):
    x, *_ = numbers(B, T, D)
    clean, poisoned = (np.asarray(norm(filled(x, fill), jnp.asarray(VALID))) for fill in (0.0, poison))
    np.testing.assert_array_equal(poisoned[VALID], clean[VALID])
    cotangent = jnp.asarray(numbers(B, T, D, seed=3)[0])
    gradients = [value_and_gradient(norm, filled(x, fill), jnp.asarray(VALID), cotangent)[1] for fill in (0.0, 31.0)]
    np.testing.assert_allclose(gradients[1], gradients[0], atol=1e-5)
    assert (np.asarray(gradients[1])[~VALID] == 0).all()


@pytest.mark.parametrize("norm", [by_sequence, by_batch])
def test_the_gradient_of_valid_tokens_equals_finite_differences(norm):
    x, *_ = numbers(B, T, D)
    cotangent = np.where(VALID[..., None], numbers(B, T, D, seed=3)[0], 0).astype(np.float64)
    direction = np.where(VALID[..., None], numbers(B, T, D, seed=4)[0], 0).astype(np.float64)

    def loss(x):
        if norm is by_sequence:
            return (cotangent * expected_over_sequence(x, valid=VALID)).sum()
        mean, variance = mean_and_variance(tokens(x, VALID))
        return (cotangent * (x - mean) / np.sqrt(variance + 1e-5)).sum()

    slope = (loss(x + 1e-5 * direction) - loss(x - 1e-5 * direction)) / 2e-5
    _, gradient = value_and_gradient(norm, *given(x, VALID, cotangent.astype(np.float32)))
    np.testing.assert_allclose((np.asarray(gradient, np.float64) * direction).sum(), slope, rtol=1e-4)


@pytest.mark.parametrize("norm", [by_sequence, by_batch])
def test_padding_does_not_change_normalised_tokens(norm):
    x, *_ = numbers(B, T, D)
    valid = np.ones((B, T), bool)
    longer = np.concatenate([x, np.full((B, 2, D), 1e3, np.float32)], axis=1)
    padded = norm(jnp.asarray(longer), jnp.asarray(np.pad(valid, ((0, 0), (0, 2)))))
    np.testing.assert_allclose(padded[:, :T], norm(jnp.asarray(x), jnp.asarray(valid)), atol=2e-6)


def test_a_sequence_without_valid_tokens_is_finite():
    x, valid = jnp.asarray(numbers(B, T, D)[0]), jnp.asarray(VALID).at[1].set(False)
    value, gradient = value_and_gradient(by_sequence, x, valid, jnp.ones((B, T, D)))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    mean, variance, count = statistics(x, jnp.zeros((B, T), bool))
    assert count == 0
    assert not mean.any()
    assert not variance.any()


@pytest.mark.parametrize("shape", [(D,), (1, D), (1, 1, D)])
def test_batch_statistics_reject_a_single_token(shape):
    with pytest.raises(ValueError, match="BatchNorm trains on 1 token; expected at least 2"):
        batch_statistics(jnp.ones(shape))


@masked
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (-2, -1), (-1,)])
def test_moments_keep_reduced_axes_with_size_one(axes, valid):
    x, *_ = numbers(B, T, D)
    mean, variance = moments(jnp.asarray(x), axes, given(valid)[0])
    hidden = np.zeros(x.shape, bool) if valid is None else np.broadcast_to(~valid[..., None], x.shape)
    seen = np.ma.masked_array(x.astype(np.float64), hidden)
    wanted = seen.mean(axes, keepdims=True), seen.var(axes, keepdims=True)
    for actual, exact in zip((mean, variance), wanted, strict=True):
        assert actual.shape == exact.shape
        np.testing.assert_allclose(actual, exact.filled(0), atol=2e-5)


def test_epsilon_and_momentum_may_be_traced():
    (x,) = given(numbers(B, T, D)[0])
    batch, old = statistics(x), (jnp.zeros(D), jnp.ones(D))
    epsilons = jnp.array([0.1, 0.7])
    rows = jax.vmap(lambda e: sequence_norm(x, epsilon=e))(epsilons)
    np.testing.assert_allclose(rows, [expected_over_sequence(np.asarray(x), epsilon=e) for e in (0.1, 0.7)], atol=3e-6)
    rows = jax.vmap(lambda e: batch_norm(x, *batch[:2], epsilon=e))(epsilons)
    np.testing.assert_allclose(rows, [batch_norm(x, *batch[:2], epsilon=e) for e in (0.1, 0.7)], atol=3e-6)
    rows = jax.vmap(lambda m: running_statistics(old, batch, m))(epsilons)
    for row, momentum in zip(zip(*rows, strict=True), (0.1, 0.7), strict=True):
        np.testing.assert_allclose(row, running_statistics(old, batch, momentum), atol=1e-5)


def test_bfloat16_statistics_are_float32():
    """In bfloat16, sums of numbers near 100 and their variance would be inaccurate."""
    x = jnp.asarray(np.random.default_rng(0).normal(100, 3, (2, 509, 3)), jnp.bfloat16)
    exact = np.asarray(x.astype(jnp.float32))
    mean, variance, count = statistics(x)
    assert mean.dtype == variance.dtype == count.dtype == jnp.float32
    wanted = mean_and_variance(exact.reshape(-1, 3))
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-5)
    np.testing.assert_allclose(variance, wanted[1], rtol=1e-3)
    for result, y in (
        (sequence_norm(x), expected_over_sequence(exact)),
        (batch_norm(x, mean, variance), (exact - wanted[0]) / np.sqrt(wanted[1] + 1e-5)),
    ):
        assert result.dtype == jnp.bfloat16
        # Half a unit in the last place: 8 significant bits.
        np.testing.assert_allclose(result.astype(jnp.float32), y, rtol=2.0**-8 + 1e-4, atol=1e-3)
