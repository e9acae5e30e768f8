"""PaTH attention equals a loop over queries, keys and the matrices between them."""

import numpy as np
import pytest
from mechanisms import weights_of
from naive import D, N, assert_attention, attention_loop, output, projected, sequence, sigmoid
from recurrences import convolved, into, silu, unit

from flaxformer.catalog import PathAttention
from flaxformer.system.errors import UserError

H = D // N


@pytest.mark.long
@pytest.mark.parametrize("key_value_heads", [None, 1])
def test_path_attention_equals_its_equation(key_value_heads):
    component = PathAttention(heads=N, key_value_heads=key_value_heads, rank=3)

    def loop(weights, x):
        w = unit(silu(convolved(into(x @ weights.reflect_down, weights.reflect_up), weights.reflect_kernel)))
        beta = 2 * sigmoid(x @ weights.strength + weights.strength_bias)
        query, key = projected(weights, x, "query"), projected(weights, x, "key")

        def logit(t, s, head):
            group = head * key.shape[1] // N
            product = np.eye(H)
            for r in range(s + 1, t + 1):
                product = (np.eye(H) - beta[r, group] * np.outer(w[r, group], w[r, group])) @ product
            k = key[s, group]
            return query[t, head] @ (product @ k - k) / np.sqrt(H)  # the loop adds the plain product

        return output(weights, attention_loop(weights, x, logit))

    assert_attention(component, loop, weights_of(component, D), sequence())


def test_without_strength_it_is_attention():
    component = PathAttention(heads=N, rank=3)
    weights = weights_of(component, D)
    weights = weights.replace(strength=np.zeros((D, N)), strength_bias=np.full(N, -1e3))
    assert_attention(component, lambda weights, x: output(weights, attention_loop(weights, x)), weights, sequence())


@pytest.mark.parametrize("field", ["window", "frozen_pattern"])
def test_a_window_and_a_frozen_pattern_are_refused(field):
    with pytest.raises(UserError, match=f"{field} is 4; expected None"):
        PathAttention(heads=N, **{field: 4})
