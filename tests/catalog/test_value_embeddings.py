"""Value embeddings equal a loop over queries and keys."""

import numpy as np
import pytest
from mechanisms import weights_of
from naive import D, N, T, assert_attention, attention_loop, output, projected, sequence, sigmoid

from flaxformer.catalog import GatedValueEmbeddings, ValueEmbeddings

TOKENS = np.random.default_rng(9).integers(0, 5, T)


@pytest.mark.parametrize("key_value_heads", [None, 1])
def test_value_embeddings_equal_their_equation(key_value_heads):
    component = ValueEmbeddings(heads=N, key_value_heads=key_value_heads)
    weights = weights_of(component, D)
    assert weights.table.shape == (256, key_value_heads or N, D // N)
    weights = weights.replace(share=np.array(0.3))

    def loop(weights, x):
        value = projected(weights, x, "value")
        for t in range(len(x)):
            value[t] = (1 - weights.share) * value[t] + weights.share * weights.table[TOKENS[t]]
        return output(weights, attention_loop(weights, x, value=value))

    assert_attention(component, loop, weights, sequence(), tokens=TOKENS)


def test_without_a_share_it_is_attention():
    component = ValueEmbeddings(heads=N)
    weights = weights_of(component, D).replace(share=np.array(0.0))

    def loop(weights, x):
        value = (1 - weights.share) * projected(weights, x, "value") + weights.share * weights.table[TOKENS]
        return output(weights, attention_loop(weights, x, value=value))

    np.testing.assert_allclose(loop(weights, sequence()), output(weights, attention_loop(weights, sequence())))
    assert_attention(component, loop, weights, sequence(), tokens=TOKENS)


@pytest.mark.parametrize("key_value_heads", [None, 1])
def test_gated_value_embeddings_equal_their_equation(key_value_heads):
    component = GatedValueEmbeddings(heads=N, key_value_heads=key_value_heads)
    width = 20  # more than the entries that the gate reads
    weights = weights_of(component, width)
    assert weights.gate.shape == (12, key_value_heads or N)

    def loop(weights, x):
        value = projected(weights, x, "value")
        for t in range(len(x)):
            for head in range(value.shape[1]):
                gate = 3 * sigmoid(sum(x[t, i] * weights.gate[i, head] for i in range(12)))
                value[t, head] += gate * weights.table[TOKENS[t], head]
        return output(weights, attention_loop(weights, x, value=value))

    assert_attention(component, loop, weights, sequence(width), tokens=TOKENS)
