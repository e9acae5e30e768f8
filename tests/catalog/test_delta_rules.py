"""Mixers that replace what a memory holds: DeltaNet, Kimi delta attention and RWKV-7 equal their equations."""

import numpy as np
from recurrences import D, T, assert_equals, convolved, into, layer_normal, rms, sigmoid, silu, softplus, unit

from flaxformer.catalog import RWKV7, DeltaNet, KimiDeltaAttention

N = 2
H = D // N


def maps_of(weights, x):
    maps = [
        silu(convolved(into(x, getattr(weights, name)), getattr(weights, f"{name}_kernel")))
        for name in ("query", "key", "value")
    ]
    return unit(maps[0]), unit(maps[1]), maps[2]


def test_deltanet_equals_its_recurrence():
    def reference(weights, x):
        query, key, value = maps_of(weights, x)
        strength, outputs = sigmoid(x @ weights.strength), np.zeros((T, D))
        for head in range(N):
            state = np.zeros((H, H))
            for t in range(T):
                k = key[t, head]
                state = state + strength[t, head] * np.outer(k, value[t, head] - k @ state)
                y = rms(query[t, head] @ state / np.sqrt(H), 1e-5) * weights.gain
                outputs[t] += y @ weights.out[head]
        return outputs

    assert_equals(DeltaNet(heads=N), reference)


def test_kimi_delta_attention_equals_its_recurrence():
    def reference(weights, x):
        query, key, value = maps_of(weights, x)
        strength, outputs = sigmoid(x @ weights.strength), np.zeros((T, D))
        decay = into(x @ weights.decay_down, weights.decay_up) + weights.decay_bias
        decay += np.log(np.expm1(np.geomspace(0.001, 0.1, H)))
        gate = sigmoid(into(x @ weights.gate_down, weights.gate_up) + weights.gate_bias)
        for head in range(N):
            state, rate = np.zeros((H, H)), np.linspace(1, 16, N)[head] * np.exp(weights.log_rate[head])
            for t in range(T):
                k = key[t, head]
                state = np.exp(-rate * softplus(decay[t, head]))[:, None] * state
                state = state + strength[t, head] * np.outer(k, value[t, head] - k @ state)
                y = rms(query[t, head] @ state / np.sqrt(H), 1e-5) * weights.gain * gate[t, head]
                outputs[t] += y @ weights.out[head]
        return outputs

    assert_equals(KimiDeltaAttention(heads=N), reference)


def rwkv7(first_value):
    def reference(weights, x):
        before = np.concatenate([np.zeros((1, D)), x[:-1]])
        xr, xd, xk, xv, xa, xg = (x + mu * (before - x) for mu in weights.share)
        r, k, v = into(xr, weights.receptance), into(xk, weights.key), into(xv, weights.value)
        decay = np.exp(
            -np.exp(-0.5) * sigmoid(into(np.tanh(xd @ weights.decay_down), weights.decay_up) + weights.decay_bias)
        )
        rate = sigmoid(into(xa @ weights.rate_down, weights.rate_up) + weights.rate_bias)
        gate = into(sigmoid(xg @ weights.gate_down), weights.gate_up)
        mix = sigmoid(into(xv @ weights.mix_down, weights.mix_up) + weights.mix_bias)
        v = v if first_value is None else (1 - mix) * v + mix * first_value
        kappa = unit(k * weights.removal, 1e-12)
        k = k * (1 - weights.rate_share + rate * weights.rate_share)
        outputs = np.zeros((T, D))
        for head in range(N):
            state = np.zeros((H, H))  # as in the paper: rows are values, columns are keys
            for t in range(T):
                transition = np.diag(decay[t, head]) - np.outer(kappa[t, head], rate[t, head] * kappa[t, head])
                state = state @ transition + np.outer(v[t, head], k[t, head])
                y = layer_normal(state @ r[t, head], 1e-5 * H) * weights.gain[head] + weights.bias[head]
                y = y + (r[t, head] * k[t, head] * weights.bonus[head]).sum() * v[t, head]
                outputs[t] += y * gate[t, head] @ weights.out[head]
        return outputs

    return reference


def test_rwkv7_equals_its_recurrence_and_mixes_the_values_of_the_first_layer():
    component = RWKV7(heads=N, decay_rank=2, rate_rank=2, mix_rank=2, gate_rank=3)
    first_value = np.random.default_rng(4).standard_normal((T, N, H))
    assert_equals(component, rwkv7(first_value), carried={"first_value": first_value})


def test_rwkv7_in_the_first_layer_keeps_its_values():
    component = RWKV7(heads=N, decay_rank=2, rate_rank=2, mix_rank=2, gate_rank=3)
    assert_equals(component, rwkv7(None), layer=0, carried={"first_value": np.ones((T, N, H))})
