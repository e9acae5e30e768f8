"""Mixers that add to a memory: retention, linear attention, Based, Mamba, Mamba-2 and mLSTM equal their equations."""

import jax
import numpy as np
from mechanisms import applied, weights_of
from recurrences import D, T, assert_equals, convolved, into, layer_normal, rms, sigmoid, silu, softplus

from flaxformer.catalog import MLSTM, LinearAttention, Mamba, Mamba2, Retention, TaylorAttention

N = 2


def test_retention_equals_its_recurrence():
    def reference(weights, x):
        d_key, outputs = D // N, []
        theta = 10_000.0 ** -np.linspace(0, 1, d_key // 2)
        states = np.zeros((N, d_key, 2 * D // N))
        for n in range(T):
            y = np.zeros(D)
            for head in range(N):
                q, k, v = (x[n] @ matrix[:, head] for matrix in (weights.query, weights.key, weights.value))
                turn = np.exp(1j * n * theta)
                pairs = [(z[0 : 2 * (d_key // 2) : 2] + 1j * z[1 : 2 * (d_key // 2) : 2]) * turn for z in (q, k)]
                q, k = (
                    np.concatenate([pair.real, pair.imag, z[2 * (d_key // 2) :]])
                    for pair, z in zip(pairs, (q, k), strict=True)
                )
                gamma = 1 - 2.0 ** (-5 - head)
                states[head] = gamma * states[head] + np.outer(k / np.sqrt(d_key), v)
                y += rms(q @ states[head]) * silu(x[n] @ weights.gate[:, head]) @ weights.out[head]
            outputs.append(y)
        return np.stack(outputs)

    assert_equals(Retention(heads=N), reference)


def normalised(features, epsilon=0.0):
    """Linear attention with these features, as a sum over pairs of tokens."""

    def reference(weights, x):
        outputs = np.zeros((T, D))
        for t in range(T):
            for head in range(N):
                q, k = (features(into(x, matrix[:, head])) for matrix in (weights.query, weights.key))
                shares = q[t] @ k[: t + 1].T
                values = x[: t + 1] @ weights.value[:, head]
                outputs[t] += shares @ values / (shares.sum() + epsilon) @ weights.out[head]
        return outputs

    return reference


def test_linear_attention_equals_its_recurrence():
    assert_equals(
        LinearAttention(heads=N), normalised(lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))), 1e-6)
    )


def test_based_equals_the_taylor_series_of_the_exponential():
    def features(x):
        pairs = np.stack([np.outer(z, z).ravel() for z in x]) / np.sqrt(2 * 3)
        return np.concatenate([np.ones((len(x), 1)), x / 3**0.25, pairs], axis=1)

    assert_equals(TaylorAttention(heads=N, d_key=3), normalised(features))
    a, b = np.random.default_rng(0).standard_normal((2, 1, 3))
    z = (a @ b.T).item() / np.sqrt(3)
    np.testing.assert_allclose(features(a) @ features(b).T, 1 + z + z**2 / 2)


def test_mamba2_equals_its_recurrence():
    def reference(weights, x):
        maps = {
            name: silu(
                convolved(into(x, getattr(weights, name)), getattr(weights, f"{name}_kernel"))
                + getattr(weights, f"{name}_bias")
            )
            for name in ("input", "write", "read")
        }
        first = np.log(np.expm1(np.geomspace(0.001, 0.1, N)))
        delta = softplus(x @ weights.step + weights.step_bias + first)
        rate = np.linspace(1, 16, N) * np.exp(weights.log_rate)
        states, y = np.zeros((N, 5, 2 * D // N)), np.zeros((T, N, 2 * D // N))
        for t in range(T):
            for head in range(N):
                written = np.outer(maps["write"][t], delta[t, head] * maps["input"][t, head])
                states[head] = np.exp(-delta[t, head] * rate[head]) * states[head] + written
                y[t, head] = maps["read"][t] @ states[head] + weights.skip[head] * maps["input"][t, head]
        y = y * silu(into(x, weights.gate))
        y = rms(y.reshape(T, -1), 1e-5).reshape(y.shape) * weights.gain
        return np.tensordot(y, weights.out, 2)

    assert_equals(Mamba2(heads=N, d_state=5), reference)


def test_mamba_equals_its_recurrence():
    def reference(weights, x):
        u = silu(convolved(x @ weights.input, weights.kernel) + weights.kernel_bias)
        first = np.log(np.expm1(np.geomspace(0.001, 0.1, 2 * D)))
        delta = softplus(u @ weights.step_down @ weights.step_up + weights.step_bias + first)
        rate = np.arange(1, 5) * np.exp(weights.log_rate)
        state, y = np.zeros((2 * D, 4)), np.zeros((T, 2 * D))
        for t in range(T):
            for d in range(2 * D):
                state[d] = np.exp(-delta[t, d] * rate[d]) * state[d] + delta[t, d] * u[t, d] * (u[t] @ weights.write)
                y[t, d] = (u[t] @ weights.read) @ state[d] + weights.skip[d] * u[t, d]
        return y * silu(x @ weights.gate) @ weights.out

    assert_equals(Mamba(d_state=4), reference)


def mlstm(weights, x):
    d_key, outputs = D // N, np.zeros((T, D))
    for head in range(N):
        memory, normalizer = np.zeros((d_key, D // N)), np.zeros(d_key)
        for t in range(T):
            q, k, v = (
                x[t] @ getattr(weights, name)[:, head] + getattr(weights, f"{name}_bias")[head]
                for name in ("query", "key", "value")
            )
            k = k / np.sqrt(d_key)
            i = np.exp(x[t] @ weights.input_gate[:, head] + weights.input_bias[head])
            f = sigmoid(x[t] @ weights.forget_gate[:, head] + weights.forget_bias[head] + np.linspace(3, 6, N)[head])
            memory, normalizer = f * memory + i * np.outer(k, v), f * normalizer + i * k
            hidden = q @ memory / max(abs(q @ normalizer), 1)
            gate = sigmoid(x[t] @ weights.output_gate[:, head] + weights.output_bias[head])
            outputs[t] += layer_normal(hidden) * weights.gain[head] * gate @ weights.out[head]
    return outputs


def test_mlstm_equals_its_recurrence_without_stabilisation():
    assert_equals(MLSTM(heads=N), mlstm)


def test_mlstm_does_not_overflow_with_large_input_gates():
    component, x = MLSTM(heads=N), np.random.default_rng(3).standard_normal((T, D))
    weights = weights_of(component, D)
    weights = weights.replace(input_bias=weights.input_bias + 300)
    expected = mlstm(weights, x)  # exp(300) is finite in double precision
    y, _ = applied(component, jax.tree.map(np.float32, weights), np.float32(x))
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-3)
