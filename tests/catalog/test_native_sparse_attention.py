"""Native sparse attention equals a loop over queries, blocks and keys."""

import numpy as np
import pytest
from mechanisms import weights_of
from naive import D, N, T, assert_attention, output, projected, sequence, sigmoid, softmax

from flaxformer.catalog import NativeSparseAttention
from flaxformer.system.errors import UserError

H = D // N


def selected_blocks(t, probabilities, block, count):
    """Blocks in the order of choice: the first and the last two, then by compressed attention."""
    own = t // block
    fixed = [i for i in range(own + 1) if i in (0, own - 1, own)]
    others = sorted((i for i in probabilities if i not in fixed), key=lambda i: probabilities[i], reverse=True)
    return fixed[:count] + others[: max(count - len(fixed), 0)]


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("key_value_heads", [None, 1])
@pytest.mark.parametrize(("block", "selected", "local"), [(1, 4, 2), (2, 3, 1), (3, 3, 4)])
def test_native_sparse_attention_equals_its_rule(block, selected, local, key_value_heads):
    component = NativeSparseAttention(
        heads=N, key_value_heads=key_value_heads, block=block, selected=selected, local=local
    )
    chosen = set()

    def loop(weights, x):
        query, key, value = (projected(weights, x, name) for name in ("query", "key", "value"))
        gate = sigmoid(np.einsum("td,dnb->tnb", x, weights.gate))
        groups, mixed = key.shape[1], np.zeros((T, N, H))
        for t in range(T):
            ended = range((t + 1) // block)
            compressed = {}
            for head in range(N):
                k = key[:, head * groups // N]
                logits = [query[t, head] @ k[i * block : (i + 1) * block].mean(0) / np.sqrt(H) for i in ended]
                compressed[head] = dict(zip(ended, softmax(logits) if ended else (), strict=True))
            for head in range(N):
                group = head * groups // N
                k, v = key[:, group], value[:, group]
                peers = [other for other in range(N) if other * groups // N == group]
                mean = {i: np.mean([compressed[other][i] for other in peers]) for i in ended}
                blocks = selected_blocks(t, mean, block, selected)
                chosen.update((t, i) for i in blocks)

                def attended(keys, head=head, t=t, k=k, v=v):
                    return softmax([query[t, head] @ k[s] / np.sqrt(H) for s in keys]) @ v[keys]

                means = [v[i * block : (i + 1) * block].mean(0) for i in ended]
                parts = [
                    sum((compressed[head][i] * m for i, m in zip(ended, means, strict=True)), np.zeros(H)),
                    attended([s for s in range(t + 1) if s // block in blocks]),
                    attended([s for s in range(t + 1) if t - s < local]),
                ]
                mixed[t, head] = sum(gate[t, head, b] * part for b, part in enumerate(parts))
        return output(weights, mixed)

    assert_attention(component, loop, weights_of(component, D), sequence())
    assert len(chosen) < T * (T + 1) / 2 or block > 1


def test_a_window_is_refused():
    with pytest.raises(UserError, match="window is 4; expected None"):
        NativeSparseAttention(heads=N, window=4)
