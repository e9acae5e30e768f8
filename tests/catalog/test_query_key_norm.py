"""The norm of queries and keys over all heads equals a loop over its equation."""

import numpy as np
import pytest
from mechanisms import weights_of
from naive import D, N, assert_attention, attention_loop, output, projected, rms_norm, sequence

from flaxformer import Attention
from flaxformer.catalog import RMSNormOverHeads


@pytest.mark.parametrize("key_value_heads", [None, 1])
def test_the_norm_is_over_all_heads_of_queries_and_of_keys(key_value_heads):
    component = Attention(heads=N, key_value_heads=key_value_heads, query_key_norm=RMSNormOverHeads())

    def loop(weights, x):
        placed = {}
        for name in ("query", "key"):
            y, gain = projected(weights, x, name), getattr(weights, f"{name}_norm").gain
            assert gain.shape == y.shape[1:]
            placed[name] = np.array([rms_norm(y[t].ravel()).reshape(y[t].shape) * gain for t in range(len(x))])
        return output(weights, attention_loop(weights, x, **placed))

    assert_attention(component, loop, weights_of(component, D), sequence())
