"""Initial values of the catalog: the arms' first weights have the published scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from references import assert_equal, context_of, drawn

from flaxformer import Attention, Dense, ModelConfig, NoPositions, Run, StandardLibrary, replace_at
from flaxformer.catalog import Fixup, variants
from flaxformer.core.params import path_name
from flaxformer.model import apply, init

L, D, N, F = 4, 48, 3, 64
BASELINE = Run(
    model=ModelConfig(
        layers=L, d_model=D, attention=Attention(heads=N), feed_forward=Dense(d_ff=F), positions=NoPositions()
    ),
    task=StandardLibrary(),
)
MATRICES = {
    "attention/query": D,
    "attention/value": D,
    "attention/out": D,
    "feed_forward/up": D,
    "feed_forward/down": F,
}
OUTPUTS = ("attention/out", "feed_forward/down")


def of_arm(name):
    (changes,) = variants(name).values()
    model = replace_at(BASELINE, changes).model
    params = init(jax.random.key(0), model)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return model, params, {path_name(path): np.asarray(leaf) for path, leaf in leaves}


EXPECTED = {
    "zero_outputs": lambda name, fan_in: 0 if name in OUTPUTS else None,
    "depth_scaled_outputs": lambda name, fan_in: 0.02 / (2 * L) ** 0.5 if name in OUTPUTS else 0.02,
    "t5_initialisation": lambda name, fan_in: (fan_in * (D // N if name == "attention/query" else 1)) ** -0.5,
    "truncated_normal": lambda name, fan_in: 0.02 * scipy.stats.truncnorm(-2, 2).std(),
}


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("arm", EXPECTED)
def test_standard_deviation_of_each_matrix(arm):
    _, _, weights = of_arm(arm)
    for name, fan_in in MATRICES.items():
        expected = EXPECTED[arm](name, fan_in)
        if expected is not None:
            assert weights[f"blocks/2/{name}"].std() == pytest.approx(expected, rel=0.06), name
    if arm in ("depth_scaled_outputs", "truncated_normal"):
        assert weights["embedding/tokens"].std() == pytest.approx(EXPECTED[arm]("embedding", 1), rel=0.03)
    if arm == "truncated_normal":
        assert abs(weights["embedding/tokens"]).max() == pytest.approx(0.04, rel=0.01)


def test_with_zero_outputs_the_first_model_is_that_without_layers():
    model, params, _ = of_arm("zero_outputs")
    tokens = jnp.arange(9)
    none = apply(params.replace(blocks=()), model.replace(layers=0, initial=()), tokens)
    np.testing.assert_allclose(apply(params, model, tokens), none, rtol=1e-6)


def test_orthogonal_matrices_keep_lengths():
    _, _, weights = of_arm("orthogonal")
    query = weights["blocks/1/attention/query"].reshape(D, D)
    x = np.random.default_rng(0).standard_normal((5, D))
    np.testing.assert_allclose(np.linalg.norm(x @ query, axis=1), np.linalg.norm(x, axis=1), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.svd(weights["blocks/1/feed_forward/up"])[1], 1, rtol=1e-5)


def test_fixup_has_its_residual_rule_and_its_scales():
    numbers = drawn(gain=(), bias=(), out_bias=(), x=(5, 6), matrix=(6, 6))
    x, matrix = numbers.pop("x"), numbers.pop("matrix")
    rule = Fixup()
    weights = rule.Weights(**numbers)

    def function(weights, x):
        context = context_of(x)
        return rule.join(weights, x, jnp.tanh(rule.read(weights, x, context) @ matrix), context)

    def reference(weights, x):
        rows = [[sum((x[t, i] + weights.bias) * matrix[i, j] for i in range(6)) for j in range(6)] for t in range(5)]
        return jnp.stack(
            [jnp.stack([x[t, j] + weights.gain * jnp.tanh(rows[t][j]) + weights.out_bias for j in range(6)])
             for t in range(5)]
        )  # fmt: skip

    assert_equal(function, reference, weights, x)
    model, params, found_weights = of_arm("fixup")
    assert not any(found_weights[f"blocks/1/{name}"].any() for name in OUTPUTS)
    assert not found_weights["head/matrix"].any()
    for name, (fan_in, fan_out) in {"attention/value": (D, D), "feed_forward/up": (D, F)}.items():
        expected = (2 / (fan_in + fan_out)) ** 0.5 * (2 * L) ** -0.5
        assert found_weights[f"blocks/3/{name}"].std() == pytest.approx(expected, rel=0.06)
    assert found_weights["blocks/0/attention/query"].std() == pytest.approx(D**-0.5, rel=0.06)
    assert not any("norm" in path for path in found_weights)
    assert (np.asarray(apply(params, model, jnp.arange(4))) == 0).all()
