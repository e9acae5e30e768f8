"""Windows of fill-in-the-middle are rearranged as lists of tokens are in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer import StandardLibrary, TokenFiles
from flaxformer.catalog import FillInTheMiddle
from flaxformer.system.errors import UserError

L = 6
TEXT = StandardLibrary(length=L)
WINDOW = np.arange(10, 10 + L)


def batch_of(**fields):
    task = FillInTheMiddle(text=TEXT, **fields)
    batch = jax.vmap(lambda key: task.corrupt(key, jnp.asarray(WINDOW)))(jax.random.split(jax.random.key(0), 4000))
    return task, jax.device_get(batch)


def arrangements(task, suffix_first):
    """Every possible result, by its cuts."""
    pre, suf, mid, end = range(task.start, task.start + 4)
    results = {}
    for first in range(L + 1):
        for second in range(first, L + 1):
            prefix, middle, suffix = (list(map(int, part)) for part in np.split(WINDOW, [first, second]))
            tokens = [pre, suf, *suffix, mid, *prefix, *middle, end]
            if not suffix_first:
                tokens = [pre, *prefix, suf, *suffix, mid, *middle, end]
            results.setdefault(tuple(tokens), []).append((first, second))
    return results


@pytest.mark.parametrize("suffix_first", [False, True])
def test_rearranged_windows_are_those_of_a_loop_with_uniform_cuts(suffix_first):
    task, batch = batch_of(rate=1.0, suffix_first=float(suffix_first))
    tokens = np.concatenate([batch.inputs, batch.targets[:, -1:]], axis=1)
    np.testing.assert_array_equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    expected = arrangements(task, suffix_first)
    counts = dict.fromkeys(expected, 0)
    for row in tokens:
        counts[tuple(map(int, row))] += 1  # fails for a result that the loop does not have
    for row, cuts in expected.items():
        share = sum(1 if first == second else 2 for first, second in cuts) / (L + 1) ** 2
        assert abs(counts[row] / len(tokens) - share) < 5 * np.sqrt(share / len(tokens))
    assert (batch.weights == 1).all()


def test_shares_of_plain_windows_and_of_both_orders():
    task, batch = batch_of(rate=0.6, suffix_first=0.25)
    is_plain = batch.inputs[:, 0] == WINDOW[0]
    is_suffix_first = ~is_plain & (batch.inputs[:, 1] == task.start + 1)
    no_prefix = 13 / 49  # PSM without a prefix begins in the same way
    assert abs(is_plain.mean() - 0.4) < 0.04
    assert abs(is_suffix_first[~is_plain].mean() - (0.25 + 0.75 * no_prefix)) < 0.05
    np.testing.assert_array_equal(batch.inputs[is_plain][0], [*WINDOW, *[task.start + 3] * 3])
    np.testing.assert_array_equal(batch.weights[is_plain], np.tile([1] * (L - 1) + [0] * 4, (is_plain.sum(), 1)))


def test_sizes_and_refusals():
    task = FillInTheMiddle(text=TEXT)
    assert (task.vocabulary, task.sequence_length) == (TEXT.vocabulary + 4, L + 3)
    assert task.load().evaluation().inputs.shape[-1] == L + 3
    with pytest.raises(UserError, match="rate is 2"):
        FillInTheMiddle(text=TEXT, rate=2.0)
    with pytest.raises(UserError, match="text packs documents; expected whole windows"):
        FillInTheMiddle(text=TokenFiles(path="tokens", length=8, pack="documents"))
