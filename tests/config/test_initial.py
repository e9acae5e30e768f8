"""Initial values of weights: the model's initializer, exceptions by path, and the factors of depth and width."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jaxtyping import Array, Float

from flaxformer import (
    DEPTH_SCALED_OUTPUTS,
    ZERO_OUTPUTS,
    Attention,
    DeepNorm,
    Dense,
    FeedForward,
    Initial,
    LearnedPositions,
    LeCun,
    ModelConfig,
    MuP,
    Normal,
    Orthogonal,
    Parameters,
    Parametrization,
    Residual,
    Run,
    Xavier,
    param,
    static,
)
from flaxformer.catalog import MixtureOfExperts
from flaxformer.core.params import path_name
from flaxformer.model import init
from flaxformer.system.errors import UserError

L, D, N, H, F, V = 3, 40, 4, 10, 60, 50
MODEL = ModelConfig(
    vocabulary=V,
    layers=L,
    d_model=D,
    attention=Attention(heads=N),
    feed_forward=Dense(d_ff=F),
    positions=LearnedPositions(max_length=9),
)
FANS = {"attention/query": (D, D), "attention/value": (D, D), "attention/out": (D, D), "feed_forward/up": (D, F)}
FANS |= {"feed_forward/down": (F, D)}
WHOLE = MODEL.replace(vocabulary=256, positions=LearnedPositions(max_length=64))
"""A model that can learn the task of `Run`."""
RULES = {
    "none": ((), lambda name, std: std),
    "zero": ((ZERO_OUTPUTS,), lambda name, std: 0 if name in ("attention/out", "feed_forward/down") else std),
    "depth": (
        (DEPTH_SCALED_OUTPUTS,),
        lambda name, std: std / (2 * L) ** 0.5 if name in ("attention/out", "feed_forward/down") else std,
    ),
    "first": (
        (Initial(weights=("*/query", "*/up"), factor=0.5), Initial(weights=("*/up", "blocks/1/*"), factor=9.0)),
        lambda name, std: std / 2 if name in ("attention/query", "feed_forward/up") else std,
    ),
}
draw = jax.jit(init)


def drawn(config, seed=0):
    leaves = jax.tree_util.tree_leaves_with_path(draw(jax.random.key(seed), config))
    return {path_name(path): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("residual", [Residual(), DeepNorm()], ids=["plain", "DeepNorm"])
@pytest.mark.parametrize("width", [None, 10], ids=["standard", "muP"])
def test_the_composed_scale_is_the_product_of_its_factors(rule, residual, width):
    """Normal(0.3), times 1/√m of μP, times (8L)^−¼ of DeepNorm, times the factor of the exception."""
    parametrization = Parametrization() if width is None else MuP(base_width=width)
    rules, changed = RULES[rule]
    weights = drawn(
        MODEL.replace(
            initializer=Normal(deviation=0.3), initial=rules, residual=residual, parametrization=parametrization
        )
    )
    ratio = 1 if width is None else D / width
    for name in FANS:
        std = 0.3 * ratio**-0.5
        if isinstance(residual, DeepNorm) and name != "attention/query":
            std *= (8 * L) ** -0.25
        weight = weights[f"blocks/2/{name}"]
        assert np.sqrt((weight**2).mean()) == pytest.approx(changed(name, std), rel=0.1), name
    assert weights["head/matrix"].std() == pytest.approx(0.3 / ratio, rel=0.1)
    assert weights["embedding/tokens"].std() == pytest.approx(1, rel=0.1)


def test_scales_of_t5():
    """The factors of Hugging Face's T5PreTrainedModel._init_weights, of which `query` alone is not 1/√fan-in."""
    weights = drawn(MODEL.replace(initializer=LeCun(), initial=(Initial(weights=("*/query",), factor=H**-0.5),)))
    expected = {"attention/query": (D * H) ** -0.5, "attention/key": D**-0.5, "attention/value": D**-0.5}
    expected |= {"attention/out": (N * H) ** -0.5, "feed_forward/up": D**-0.5, "feed_forward/down": F**-0.5}
    for name, std in expected.items():
        assert weights[f"blocks/0/{name}"].std() == pytest.approx(std, rel=0.1), name


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        ("normal", scipy.stats.norm(scale=0.1)),
        ("truncated", scipy.stats.truncnorm(-2, 2, scale=0.1 / scipy.stats.truncnorm(-2, 2).std())),
        ("uniform", scipy.stats.uniform(-0.1 * 3**0.5, 0.2 * 3**0.5)),
    ],
)
def test_distribution_of_the_entries(distribution, expected):
    rule = Initial(weights=("embedding/tokens",), initializer=Normal(deviation=0.1, distribution=distribution))
    numbers = drawn(MODEL.replace(vocabulary=400, initial=(rule,)))["embedding/tokens"].ravel()
    assert scipy.stats.kstest(numbers, expected.cdf).pvalue > 0.01
    assert numbers.std() == pytest.approx(0.1, rel=0.03)
    assert abs(numbers).max() <= expected.support()[1] * (1 + 1e-6)


def test_a_distribution_of_the_initializer_keeps_its_scale():
    weights = drawn(MODEL.replace(initializer=Xavier(distribution="uniform")))
    for name, (fan_in, fan_out) in FANS.items():
        weight = weights[f"blocks/1/{name}"]
        assert abs(weight).max() == pytest.approx((6 / (fan_in + fan_out)) ** 0.5, rel=0.01)
        assert weight.std() == pytest.approx((2 / (fan_in + fan_out)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("residual", [Residual(), DeepNorm()], ids=["plain", "DeepNorm"])
def test_orthogonal_matrices(residual):
    """Qᵀ Q = gain² I for a map into heads, out of heads, and of each expert."""
    model = MODEL.replace(
        initializer=Orthogonal(gain=2.0), feed_forward=MixtureOfExperts(experts=3, d_ff=F), residual=residual
    )
    weights = drawn(model)
    gain = 2 * residual.branch_gain(L, False)
    cases = {
        "attention/query": (lambda w: w.reshape(D, N * H), 2.0),
        "attention/out": (lambda w: w.reshape(N * H, D), gain),
        "feed_forward/up": (lambda w: w[1], gain),
        "feed_forward/down": (lambda w: w[2], gain),
    }
    for name, (matrix, scale) in cases.items():
        q = matrix(weights[f"blocks/0/{name}"]).astype(np.float64)
        gram = q.T @ q if q.shape[0] >= q.shape[1] else q @ q.T
        np.testing.assert_allclose(gram, scale**2 * np.eye(len(gram)), atol=1e-5, err_msg=name)
    experts = weights["blocks/0/feed_forward/up"]
    assert abs(experts[0] - experts[1]).max() > 0.01
    assert abs(np.trace(weights["blocks/0/attention/query"].reshape(D, D))) < 10  # of a Haar matrix: 2 N(0, 1)


def test_other_weights_keep_their_bits_and_the_factor_is_a_number_of_the_program():
    zero, plain = (drawn(MODEL.replace(initial=rules)) for rules in ((ZERO_OUTPUTS,), ()))
    changed = {path for path in plain if not np.array_equal(plain[path], zero[path])}
    assert changed == {f"blocks/{n}/{name}" for n in range(L) for name in ("attention/out", "feed_forward/down")}
    scaled = MODEL.replace(initial=(ZERO_OUTPUTS.replace(factor=0.5, depth_power=1.0),))
    assert jax.tree.structure(scaled) == jax.tree.structure(MODEL.replace(initial=(ZERO_OUTPUTS,)))


def test_an_exception_draws_a_constant_and_scales_one():
    rules = (
        Initial(weights=("*/up_bias",), initializer=Normal(deviation=0.5)),
        Initial(weights=("blocks/1/attention_connection/pre/gain",), factor=3.0),
        Initial(weights=("positions/*",), factor=0.01),
    )
    weights, plain = drawn(MODEL.replace(initial=rules)), drawn(MODEL)
    assert np.concatenate([weights[f"blocks/{n}/feed_forward/up_bias"] for n in range(L)]).std() == pytest.approx(
        0.5, rel=0.2
    )
    np.testing.assert_array_equal(weights["blocks/1/attention_connection/pre/gain"], 3)
    np.testing.assert_array_equal(weights["blocks/0/attention_connection/pre/gain"], 1)
    (path,) = [path for path in weights if path.startswith("positions/")]
    np.testing.assert_allclose(weights[path], plain[path] * 0.01, rtol=1e-6)


def test_an_encoder_has_exceptions_of_its_own_and_counts_its_branches():
    model = MODEL.replace(initializer=Normal(deviation=0.3), initial=(DEPTH_SCALED_OUTPUTS,)).with_encoder(layers=2)
    weights = drawn(model)
    assert weights["blocks/0/attention/out"].std() == pytest.approx(0.3 / (3 * L) ** 0.5, rel=0.1)
    assert weights["blocks/0/cross_attention/out"].std() == pytest.approx(0.3 / (3 * L) ** 0.5, rel=0.1)
    assert weights["encoder/blocks/0/attention/out"].std() == pytest.approx(0.3 / 2, rel=0.1)
    other = drawn(model.replace(encoder=model.encoder.replace(initial=(ZERO_OUTPUTS,))))
    assert not other["encoder/blocks/0/attention/out"].any()
    assert other["blocks/0/attention/out"].any()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            Initial(weights=("*/outt",)),
            r"initial.0.weights has '\*/outt', which matches no weight; expected a pattern of",
        ),
        (Initial(weights=("*/out", "nothing")), "initial.0.weights has 'nothing'"),
        (
            Initial(weights=("*/gain",), initializer=LeCun()),
            r"initial.0.initializer is LeCun, and .*pre/gain.* has no fan-in; expected Normal",
        ),
        (Initial(weights=("embedding/*",), initializer=Orthogonal()), "initial.0.initializer is Orthogonal"),
    ],
)
def test_an_exception_that_cannot_hold_is_refused(rule, message):
    for build in (functools.partial(init, jax.random.key(0)), lambda config: Run(model=config)):
        with pytest.raises(UserError, match=message):
            build(WHOLE.replace(initial=(rule,)))
    with pytest.raises(UserError, match="no branch has a matrix"):
        Run(model=WHOLE.replace(layers=0, initial=(ZERO_OUTPUTS,)))


class DecaysByHead(FeedForward):
    """x, with rates by head and layer."""

    heads: int = static(4, at_least=1)
    wrong: bool = static(False)

    class Weights(Parameters):
        rate: Float[Array, "d_head heads"] = param(value="first_rate", decay=False)

    def sizes(self, model):
        return {"d_head": 2}

    def first_rate(self, spec):
        return jnp.ones(3) if self.wrong else 2.0 ** -(1 + jnp.arange(self.heads)) + spec.layer

    def apply(self, weights, x, context):
        return x


def test_initial_values_by_head_and_layer():
    weights = drawn(MODEL.replace(feed_forward=DecaysByHead()))
    for layer in range(L):
        expected = np.tile([0.5 + layer, 0.25 + layer, 0.125 + layer, 0.0625 + layer], (2, 1))
        np.testing.assert_array_equal(weights[f"blocks/{layer}/feed_forward/rate"], expected.astype(np.float32))
    with pytest.raises(UserError, match=r"DecaysByHead.first_rate gives an array \[3\]; expected \[2, 4\]"):
        drawn(MODEL.replace(feed_forward=DecaysByHead(wrong=True)))
