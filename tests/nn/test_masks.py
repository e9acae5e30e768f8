"""Masks against their definitions in loops over batch, query and key, and the algebra of `&` and `|`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.nn import Causal, Explicit, Padding, Segments, Window
from flaxformer.nn.masks import Prefix, lengths_to_valid

B, N, T, S = 2, 3, 5, 7
RANDOM = np.random.default_rng(0)
VALID = RANDOM.random((B, S)) < 0.6
QUERY_SEGMENTS, KEY_SEGMENTS = RANDOM.integers(0, 3, (B, T)), RANDOM.integers(0, 3, (B, S))
ALLOWED = RANDOM.random((B, N, T, S)) < 0.5
# Positions as after padding on the left or from a cache: neither 0, 1, 2 …, nor alike in the rows of a batch.
QUERY_AT, KEY_AT = (
    np.array([[0, 0, 1, 2, 3], [4, 5, 6, 7, 8]]),
    np.array([[0, 0, 0, 1, 2, 3, 4], [9, 3, 4, 5, 6, 7, 8]]),
)
PREFIX = np.array([2, 6])

MASKS = {
    "causal": (Causal(), lambda b, n, t, s: s <= t),
    "causal after 2 keys": (Causal(offset=2), lambda b, n, t, s: s <= t + 2),
    "causal before 3 keys": (Causal(offset=-3), lambda b, n, t, s: s <= t - 3),
    "window 1": (Window(1), lambda b, n, t, s: s == t),
    "window 3": (Window(3), lambda b, n, t, s: s in (t - 2, t - 1, t, t + 1, t + 2)),
    "window 2 of positions": (
        Window(2, jnp.asarray(QUERY_AT), jnp.asarray(KEY_AT)),
        lambda b, n, t, s: KEY_AT[b, s] - QUERY_AT[b, t] in (-1, 0, 1),
    ),
    "window 4 of positions without batch": (
        Window(4, jnp.asarray(QUERY_AT[1]), jnp.asarray(KEY_AT[1])),
        lambda b, n, t, s: KEY_AT[1, s] - QUERY_AT[1, t] in (-3, -2, -1, 0, 1, 2, 3),
    ),
    "prefix": (Prefix(jnp.asarray(PREFIX)), lambda b, n, t, s: s < PREFIX[b]),
    "prefix without batch": (Prefix(jnp.asarray(3)), lambda b, n, t, s: s < 3),
    "prefix of nothing": (Prefix(jnp.asarray(0)), lambda b, n, t, s: False),
    "prefix of more than there is": (Prefix(jnp.asarray(S + 3)), lambda b, n, t, s: True),
    "padding": (Padding(jnp.asarray(VALID)), lambda b, n, t, s: VALID[b, s]),
    "padding without batch": (Padding(jnp.asarray(VALID[1])), lambda b, n, t, s: VALID[1, s]),
    "segments": (
        Segments(jnp.asarray(QUERY_SEGMENTS), jnp.asarray(KEY_SEGMENTS)),
        lambda b, n, t, s: QUERY_SEGMENTS[b, t] == KEY_SEGMENTS[b, s],
    ),
    "segments without batch": (
        Segments(jnp.asarray(QUERY_SEGMENTS[0]), jnp.asarray(KEY_SEGMENTS[0])),
        lambda b, n, t, s: QUERY_SEGMENTS[0, t] == KEY_SEGMENTS[0, s],
    ),
    "explicit": (Explicit(jnp.asarray(ALLOWED)), lambda b, n, t, s: ALLOWED[b, n, t, s]),
    "explicit without batch": (Explicit(jnp.asarray(ALLOWED[1, 2])), lambda b, n, t, s: ALLOWED[1, 2, t, s]),
}
every_mask = pytest.mark.parametrize(("mask", "rule"), list(MASKS.values()), ids=list(MASKS))
# One mask of every kind that has arrays, shapes that differ in rank among them.
SOME = ["causal after 2 keys", "window 2 of positions", "prefix", "padding", "segments without batch", "explicit"]


def by_loop(rule):
    result = np.zeros((B, N, T, S), bool)
    for b, n, t, s in np.ndindex(B, N, T, S):
        result[b, n, t, s] = rule(b, n, t, s)
    return result


def full(mask):
    """Return the matrix broadcast to batch, heads, queries and keys."""
    matrix = mask.matrix(T, S)
    assert matrix.dtype == bool
    return np.broadcast_to(np.asarray(matrix), (B, N, T, S))


@every_mask
def test_equals_its_definition_key_by_key(mask, rule):
    np.testing.assert_array_equal(full(mask), by_loop(rule))


@every_mask
def test_passes_through_jit_as_a_pytree(mask, rule):
    @jax.jit
    def matrix(mask):
        return mask.matrix(T, S)

    result = matrix(jax.tree.unflatten(jax.tree.structure(mask), jax.tree.leaves(mask)))
    np.testing.assert_array_equal(np.broadcast_to(result, (B, N, T, S)), by_loop(rule))


@pytest.mark.parametrize(
    ("mask", "shape"), [(name, (B, 1, T, S)) for name in ("padding", "segments", "prefix", "window 2 of positions")]
)
def test_batch_axes_leave_one_axis_for_the_heads(mask, shape):
    assert MASKS[mask][0].matrix(T, S).shape == shape


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations_with_replacement(SOME, 2)))
def test_and_intersects_and_commutes(first, second):
    (a, rule_a), (b, rule_b) = MASKS[first], MASKS[second]
    expected = by_loop(lambda *place: rule_a(*place) and rule_b(*place))
    np.testing.assert_array_equal(full(a & b), expected)
    np.testing.assert_array_equal(full(b & a), expected)


@pytest.mark.parametrize("names", list(itertools.combinations(SOME, 3)))
def test_and_associates(names):
    (a, rule_a), (b, rule_b), (c, rule_c) = (MASKS[name] for name in names)
    expected = by_loop(lambda *place: rule_a(*place) and rule_b(*place) and rule_c(*place))
    np.testing.assert_array_equal(full((a & b) & c), expected)
    np.testing.assert_array_equal(full(a & (b & c)), expected)


@every_mask
def test_none_is_the_identity_of_and(mask, rule):
    assert (mask & None) is mask
    assert (None & mask) is mask


def test_a_causal_window_allows_the_last_keys():
    result = full(Window(3) & Causal())
    np.testing.assert_array_equal(result, by_loop(lambda b, n, t, s: s in (t - 2, t - 1, t)))


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations_with_replacement(SOME, 2)))
def test_or_unites_and_commutes(first, second):
    (a, rule_a), (b, rule_b) = MASKS[first], MASKS[second]
    expected = by_loop(lambda *place: rule_a(*place) or rule_b(*place))
    np.testing.assert_array_equal(full(a | b), expected)
    np.testing.assert_array_equal(full(b | a), expected)


@pytest.mark.parametrize("names", list(itertools.permutations(["causal", "prefix", "explicit"], 3)))
def test_or_associates_and_and_distributes_over_it(names):
    (a, rule_a), (b, rule_b), (c, rule_c) = (MASKS[name] for name in names)
    united = by_loop(lambda *place: rule_a(*place) or rule_b(*place) or rule_c(*place))
    np.testing.assert_array_equal(full((a | b) | c), united)
    np.testing.assert_array_equal(full(a | (b | c)), united)
    narrowed = by_loop(lambda *place: rule_a(*place) and (rule_b(*place) or rule_c(*place)))
    np.testing.assert_array_equal(full(a & (b | c)), narrowed)
    np.testing.assert_array_equal(full((a & b) | (a & c)), narrowed)


@pytest.mark.parametrize("offset", [0, 2])
def test_causal_or_prefix_is_bidirectional_within_the_prefix(offset):
    mask = Causal(offset) | Prefix(jnp.asarray(PREFIX))
    np.testing.assert_array_equal(full(mask), by_loop(lambda b, n, t, s: s <= t + offset or s < PREFIX[b]))
    np.testing.assert_array_equal(
        full(mask & Padding(jnp.asarray(VALID))),
        by_loop(lambda b, n, t, s: bool(VALID[b, s]) and (s <= t + offset or s < PREFIX[b])),
    )


def test_a_causal_offset_selects_rows_of_a_longer_mask():
    np.testing.assert_array_equal(Causal(offset=4).matrix(3, 11), Causal().matrix(7, 11)[4:])


def test_a_window_with_positions_selects_rows_of_a_longer_window():
    later = Window(2, jnp.arange(4, 7), jnp.arange(11))
    np.testing.assert_array_equal(later.matrix(3, 11), Window(2).matrix(7, 11)[4:])


def test_a_window_depends_on_positions_not_on_indices():
    order = np.random.default_rng(2).permutation(S)
    mask, moved = (Window(3, jnp.arange(T), jnp.asarray(at)) for at in (np.arange(S), order))
    np.testing.assert_array_equal(moved.matrix(T, S), mask.matrix(T, S)[:, order])


def test_offsets_and_widths_can_be_vmapped():
    offsets, widths = np.array([-2, 0, 3]), np.array([1, 4, 2])
    masks = Causal(jnp.asarray(offsets)) & Window(jnp.asarray(widths))
    result = jax.vmap(lambda mask: mask.matrix(T, S))(masks)
    for row, offset, width in zip(result, offsets, widths, strict=True):
        for t, s in np.ndindex(T, S):
            assert row[t, s] == (s <= t + offset and abs(t - s) < width)


def test_a_batch_of_masks_is_the_vmap_of_one():
    mask = Padding(jnp.asarray(VALID)) & Segments(jnp.asarray(QUERY_SEGMENTS), jnp.asarray(KEY_SEGMENTS))
    mask = mask | Prefix(jnp.asarray(PREFIX))
    np.testing.assert_array_equal(jax.vmap(lambda mask: mask.matrix(T, S))(mask), mask.matrix(T, S))


def test_a_window_of_a_batch_of_positions_is_the_vmap_of_one():
    query, key = jnp.asarray(QUERY_AT), jnp.asarray(KEY_AT)
    rows = jax.vmap(lambda query, key: Window(2, query, key).matrix(T, S))(query, key)
    np.testing.assert_array_equal(rows[:, None], Window(2, query, key).matrix(T, S))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Padding(jnp.ones((B, S + 2), bool)), r"Padding.valid has shape \(2, 9\), for 9 keys; expected 7"),
        (
            Segments(jnp.zeros((B, T), int), jnp.zeros((B, T), int)),
            r"\(2, 5\) and \(2, 5\); expected last axes of 5 and 7",
        ),
        (
            Segments(jnp.zeros((B, S), int), jnp.zeros((B, S), int)),
            r"\(2, 7\) and \(2, 7\); expected last axes of 5 and 7",
        ),
    ],
)
def test_a_mask_rejects_other_lengths(mask, message):
    with pytest.raises(ValueError, match=message):
        mask.matrix(T, S)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_lengths_to_valid_is_true_at_the_first_tokens(shape):
    lengths = np.random.default_rng(1).integers(0, S + 1, shape)
    result = lengths_to_valid(jnp.asarray(lengths), S)
    assert result.shape == (*shape, S)
    for place in np.ndindex(*shape, S):
        assert result[place] == (place[-1] < lengths[place[:-1]])


def test_lengths_to_valid_accepts_zero_and_full_length():
    np.testing.assert_array_equal(lengths_to_valid(jnp.array([0, S, S + 9]), S).sum(-1), [0, S, S])
