"""Block selection equals a loop over queries and blocks."""

import jax
import numpy as np
import pytest
from mechanisms import weights_of
from naive import D, N, assert_attention, attention_loop, output, projected, sequence

from flaxformer import Attention
from flaxformer.catalog import BlockSelection
from flaxformer.system.errors import UserError


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("key_value_heads", [None, 1])
@pytest.mark.parametrize(("block", "selected"), [(2, 1), (2, 2), (3, 2), (1, 3)])
def test_block_selection_equals_its_rule(block, selected, key_value_heads):
    component = BlockSelection(heads=N, block=block, selected=selected, key_value_heads=key_value_heads)
    chosen = set()

    def loop(weights, x):
        query, key = projected(weights, x, "query"), projected(weights, x, "key")

        def logit(t, s, head):
            past = range(t // block)
            k = key[:, head * key.shape[1] // N]
            scores = {i: query[t, head] @ k[i * block : (i + 1) * block].mean(0) for i in past}
            best = sorted(past, key=scores.get, reverse=True)[: selected - 1]
            chosen.update((t, i) for i in best)
            return 0 if s // block in (t // block, *best) else -np.inf

        return output(weights, attention_loop(weights, x, logit))

    assert_attention(component, loop, weights_of(component, D), sequence())
    assert selected == 1 or len(chosen) > 3


def test_with_all_blocks_selected_it_is_attention():
    component = BlockSelection(heads=N)
    weights = weights_of(component, D)
    assert jax.tree.map(np.shape, weights) == jax.tree.map(np.shape, weights_of(Attention(heads=N), D))
    assert_attention(component, lambda weights, x: output(weights, attention_loop(weights, x)), weights, sequence())


def test_a_window_is_refused():
    with pytest.raises(UserError, match="window is 4; expected None"):
        BlockSelection(heads=N, window=4)
