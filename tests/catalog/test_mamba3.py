"""Mamba-3 equals its recurrence over complex numbers."""

import numpy as np
import pytest
from recurrences import D, T, assert_equals, into, rms, sigmoid, silu, softplus

from flaxformer.catalog import Mamba3

N, STATE = 2, 6
PAIRS = STATE // 4


def complex_form(x):
    """The first pairs of entries as complex numbers, the others as real ones."""
    return np.concatenate([x[: 2 * PAIRS : 2] + 1j * x[1 : 2 * PAIRS : 2], x[2 * PAIRS :]])


@pytest.mark.long
def test_mamba3_equals_its_recurrence():
    def reference(weights, x):
        delta = softplus(x @ weights.step + np.log(np.expm1([0.001, 0.1])) + weights.step_bias)
        rate, blend = softplus(x @ weights.rate), sigmoid(x @ weights.blend)
        speed = np.pi * np.tanh(x @ weights.angle)
        value, gate, outputs = into(x, weights.input), silu(into(x, weights.gate)), np.zeros((T, D))
        write, read = (
            rms(x @ getattr(weights, name), 1e-5) * getattr(weights, f"{name}_gain") for name in ("write", "read")
        )
        for head in range(N):
            # the state turns back, in place of B and C that turn forward
            state, entering = 0, 0
            for t in range(T):
                b, c = (complex_form(z[t] + bias[head]) for z, bias in
                        ((write, weights.write_bias), (read, weights.read_bias)))  # fmt: skip
                d, turn = delta[t, head], np.ones(PAIRS + STATE - 2 * PAIRS, complex)
                turn[:PAIRS] = np.exp(-1j * d * speed[t])
                alpha = np.exp(-d * rate[t, head])
                state = alpha * turn[:, None] * (state + (1 - blend[t, head]) * d * entering)
                entering = np.outer(b, value[t, head])
                state = state + blend[t, head] * d * entering
                y = (c.conj() @ state).real + weights.skip[head] * value[t, head]
                outputs[t] += (y * gate[t, head]) @ weights.out[head]
        return outputs

    assert_equals(Mamba3(heads=N, d_state=STATE), reference)
