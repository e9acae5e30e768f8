"""Parameters: shapes, counts, initial values and random keys that follow from the declarations."""

import jax
import numpy as np
import pytest

from flaxformer.components import POST, PRE, Attention, Dense, LanguageModel, LearnedPositions, LeCun, Normal, Xavier
from flaxformer.config import ModelConfig
from flaxformer.core.params import count, stack, table, unstack
from flaxformer.core.paths import replace_at
from flaxformer.model import init, specs
from flaxformer.model.weights import with_layout

CONFIG = ModelConfig(
    vocabulary=101,
    layers=2,
    d_model=48,
    attention=Attention(heads=3, key_value_heads=1, d_value=20),
    feed_forward=Dense(d_ff=96),
)


def named(params):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


@pytest.mark.long
def test_shapes_and_counts_follow_the_declarations():
    params = named(init(jax.random.key(0), CONFIG))
    assert {path: spec.shape for path, spec in table(specs(CONFIG))} == {
        path: leaf.shape for path, leaf in params.items()
    }
    D, F, V, N, K, H, E = 48, 96, 101, 3, 1, 16, 20
    attention = D * N * H + D * K * H + D * K * E + N * E * D + N * H + K * H + K * E + D
    block = attention + 2 * D * F + F + D + 4 * D
    assert count(specs(CONFIG)) == sum(leaf.size for leaf in params.values()) == V * D + 2 * block + 2 * D + D * V


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("initializer", "std"),
    [
        (Xavier(), lambda fan_in, fan_out: (2 / (fan_in + fan_out)) ** 0.5),
        (LeCun(gain=2.0), lambda fan_in, fan_out: 2 * fan_in**-0.5),
        (Normal(deviation=0.3), lambda fan_in, fan_out: 0.3),
    ],
)
def test_initial_std_of_matrices_follows_the_initializer(initializer, std):
    params = named(init(jax.random.key(0), CONFIG.replace(initializer=initializer)))
    fans = {"query": (48, 48), "value": (48, 20), "out": (60, 48), "up": (48, 96), "down": (96, 48)}
    for path, leaf in params.items():
        name = path.split("/")[-1]
        if name in fans:
            expected = std(*fans[name])
            assert leaf.std() == pytest.approx(expected, rel=5 / (2 * leaf.size) ** 0.5), path
            assert abs(leaf.mean()) < 5 * expected / leaf.size**0.5
    assert params["embedding/tokens"].std() == pytest.approx(1.0, rel=0.05)


@pytest.mark.long
def test_initial_weights_depend_only_on_path_and_key():
    """Adding weights, blocks or norms does not change the initial values of other weights."""
    base = named(init(jax.random.key(0), CONFIG))
    changes = [
        {"norm": POST},
        {"layers": 3},
        {"head": LanguageModel(bias=True)},
        {"attention.bias": False},
        {"positions": LearnedPositions(max_length=9)},
        {"feed_forward.d_ff": 31},
    ]
    for change in changes:
        other = named(init(jax.random.key(0), replace_at(CONFIG, change)))
        shared = {path for path in base.keys() & other.keys() if base[path].shape == other[path].shape}
        assert len(shared) > 10
        for path in shared:
            np.testing.assert_array_equal(base[path], other[path])


def test_initial_values_differ_between_weights_and_between_keys():
    params = named(init(jax.random.key(0), CONFIG))
    random = [leaf.ravel()[:20] for leaf in params.values() if leaf.std() > 0]
    correlations = np.corrcoef(random) - np.eye(len(random))
    assert np.abs(correlations).max() < 0.9
    other = named(init(jax.random.key(1), CONFIG))
    assert not np.array_equal(params["head/matrix"], other["head/matrix"])


def test_changing_the_layout_preserves_the_weights():
    params = init(jax.random.key(0), CONFIG)
    back = with_layout(with_layout(params, "scanned"), "unrolled")
    jax.tree.map(np.testing.assert_array_equal, params, back)
    jax.tree.map(np.testing.assert_array_equal, params.blocks, unstack(stack(params.blocks)))


def test_a_tied_head_has_no_matrix_of_its_own():
    tied = CONFIG.replace(head=LanguageModel(tied=True))
    assert "head/matrix" not in named(init(jax.random.key(0), tied))
    assert count(specs(CONFIG)) - count(specs(tied)) == 48 * 101


def test_empty_norm_placements_have_no_weights():
    assert not any("/post_residual/" in path for path, _ in table(specs(CONFIG.replace(norm=PRE))))
    assert not any("/pre/" in path or "final" in path for path, _ in table(specs(CONFIG.replace(norm=POST))))
