"""Synthesizers equal a loop over their equations."""

import numpy as np
import pytest
from recurrences import D, T, assert_equals, into

from flaxformer.catalog import DenseSynthesizer, FactorisedRandomSynthesizer, RandomSynthesizer
from flaxformer.nn import Causal

N, LENGTH = 2, 9


def dense(weights, x, t, head):
    hidden = np.maximum(x[t] @ weights.first[:, head] + weights.first_bias[head], 0)
    return hidden @ weights.second[head] + weights.second_bias[head]


def random(weights, x, t, head):
    return weights.table[t, head]


def factorised(weights, x, t, head):
    return weights.columns[:, head] @ weights.rows[t, head]


@pytest.mark.parametrize(
    ("component", "logits"),
    [
        (DenseSynthesizer(heads=N, length=LENGTH), dense),
        (RandomSynthesizer(heads=N, length=LENGTH), random),
        (FactorisedRandomSynthesizer(heads=N, length=LENGTH, rank=3), factorised),
    ],
    ids=["dense", "random", "factorised"],
)
def test_a_synthesizer_equals_its_equation(component, logits):
    def reference(weights, x):
        value, outputs = into(x, weights.value), np.zeros((T, D))
        for t in range(T):
            for head in range(N):
                shares = np.exp(logits(weights, x, t, head)[: t + 1])
                outputs[t] += shares / shares.sum() @ value[: t + 1, head] @ weights.out[head]
        return outputs

    assert_equals(component, reference, mask=Causal())
