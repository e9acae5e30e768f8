"""MesaNet equals its recurrence, and its memory solves a least-squares problem."""

import numpy as np
import pytest
from recurrences import D, T, assert_equals, convolved, into, rms, sigmoid, silu, softplus, unit

from flaxformer.catalog import MesaNet

N = 2
H = D // N


@pytest.mark.long
def test_mesa_net_equals_its_recurrence():
    def reference(weights, x):
        query, key = (
            unit(silu(convolved(into(x, getattr(weights, name)), getattr(weights, f"{name}_kernel"))))
            for name in ("query", "key")
        )
        value, outputs = into(x, weights.value), np.zeros((T, D))
        decay, strength = (
            sigmoid(x @ weights.decay + weights.decay_bias),
            sigmoid(x @ weights.strength + weights.strength_bias),
        )
        for head in range(N):
            for t in range(T):
                # argmin over M of Σ_s weight_s |k_s M − v_s|² + Σ_i λ_i |M_i|²
                share = [strength[s, head] * np.prod(decay[s + 1 : t + 1, head]) for s in range(t + 1)]
                k, v = (z[: t + 1, head] for z in (key, value))
                ridge = np.diag(0.25 + softplus(weights.ridge[head]))
                memory = np.linalg.inv(k.T @ np.diag(share) @ k + ridge) @ (k.T @ np.diag(share) @ v)
                outputs[t] += rms(query[t, head] @ memory, 1e-5) * weights.gain @ weights.out[head]
        return outputs

    assert_equals(MesaNet(heads=N), reference)
