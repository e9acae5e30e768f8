"""Parametrizations: factors per role against the published rules, and training whose activations keep their size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer import model
from flaxformer.components import (
    NTK,
    Attention,
    ByRole,
    Dense,
    DepthScaled,
    LanguageModel,
    LeCun,
    MuP,
    Normal,
    Parametrization,
    Regressor,
    ReZero,
    Role,
    Tokens,
    Vectors,
    Xavier,
)
from flaxformer.config import ModelConfig
from flaxformer.core.canonical import canonical
from flaxformer.core.params import param, path_name, table
from flaxformer.core.paths import replace_at
from flaxformer.diagnostics import coordinate_check
from flaxformer.diagnostics.coordinate import at_width
from flaxformer.laws.programs import fast_jit
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import SGD, AdamW, Constant, Lamb, Lion, Muon, Run, ScheduleFree, start, train_chunk
from flaxformer.training.loss import loss
from flaxformer.training.weight_scales import weight_scales

BASE = 8
MODEL = ModelConfig(
    vocabulary=11, layers=1, d_model=BASE, attention=Attention(heads=2, scale_exponent=1.0),
    feed_forward=Dense(d_ff=3 * BASE), initializer=LeCun(),
)  # fmt: skip
RUN = Run(
    model=MODEL, task=Copy(symbols=10, length=4, batch_size=3), optimizer=AdamW(learning_rate=1e-2, decay=Constant())
)
KINDS = [ByRole(base_width=BASE), MuP(base_width=BASE, base_layers=1), NTK(base_width=BASE)]


def run_at(width, kind, **changes):
    return replace_at(RUN.replace(model=at_width(MODEL, width).replace(parametrization=kind)), changes)


def trained(run, layout="unrolled"):
    return fast_jit(lambda run: train_chunk(start(run, layout), run, run.task.load(), 3)[0].params)(run)


def named(params):
    return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def assert_close(one, other, rtol=1e-5, atol=1e-6, without=()):
    one, other = named(one), named(other)
    assert one.keys() == other.keys()
    for path in one:
        if path.endswith(without):
            continue
        np.testing.assert_allclose(one[path], other[path], rtol=rtol, atol=atol, err_msg=path)


def roles(config):
    return {path: spec.role for path, spec in table(model.specs(config))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.1, clip=1.0), SGD(weight_decay=0.1), Muon()])
def test_at_the_base_width_training_is_that_of_the_standard_parametrization(kind, optimizer):
    own, standard = (run_at(BASE, one, optimizer=optimizer) for one in (kind, Parametrization()))
    np.testing.assert_array_equal(named(start(own).params)["head/matrix"], named(start(standard).params)["head/matrix"])
    # A bias of keys changes no attention: its gradient is the rounding error, which Adam divides by its own size.
    assert_close(trained(own), trained(standard), without=("key_bias",))


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("initializer", [LeCun(), Xavier(), Normal(deviation=0.1)])
def test_initial_scales_of_mup_are_those_of_table_3(initializer):
    """Yang et al. 2022, with a base width: std ∝ 1/√fan-in of hidden, 1/fan-in of output weights."""
    here = run_at(4 * BASE, MuP(base_width=BASE)).model.replace(initializer=initializer)
    at_base = dict(table(model.specs(MODEL)))
    for path, spec in table(model.specs(here)):
        if spec.init in ("matrix", "branch", "output"):
            expected = initializer.std(at_base[path]) * {"hidden": 4**-0.5, "output": 1 / 4}[spec.role]
            np.testing.assert_allclose(here.initial_value(spec).scale, expected, rtol=1e-6, err_msg=path)
    kinds = (here.parametrization, Parametrization())
    drawn, unscaled = (named(model.init(jax.random.key(0), here.replace(parametrization=kind))) for kind in kinds)
    np.testing.assert_array_equal(drawn["embedding/tokens"], unscaled["embedding/tokens"])
    std = here.initial_value(dict(table(model.specs(here)))["head/matrix"]).scale
    np.testing.assert_allclose(drawn["head/matrix"].std(), std, rtol=0.2)


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("optimizer", "rates"),
    [
        (AdamW(weight_decay=0.1), {"vector": 1, "input": 1, "hidden": 1 / 4, "output": 1 / 4}),
        (Lion(weight_decay=0.1), {"vector": 1, "input": 1, "hidden": 1 / 4, "output": 1 / 4}),
        (SGD(weight_decay=0.1), {"vector": 4, "input": 4, "hidden": 1, "output": 1 / 4}),
    ],
)
@pytest.mark.parametrize("reads", ["tokens", "vectors"])
def test_learning_rates_of_mup_are_those_of_table_3(optimizer, rates, reads):
    """Yang et al. 2022: rates 1, 1/m, 1/m (Adam), and m, 1, 1/m (SGD), of input, hidden and output weights."""
    config = at_width(MODEL, 4 * BASE).replace(parametrization=MuP(base_width=BASE))
    if reads == "vectors":
        config = config.replace(inputs=Vectors(width=3), head=Regressor(numbers=2))
    assert set(roles(config).values()) == {"vector", "hidden", "output"} | ({"input"} if reads == "vectors" else set())
    params = model.init(jax.random.key(0), config)
    scales = weight_scales(params, config, optimizer.gradient_degree)
    updates = []
    for gradient, own in ((1.0, scales), (1.0, None), (0.0, scales), (0.0, None)):
        chain = optimizer.transformation(0.01, own)
        gradients = jax.tree.map(lambda w, g=gradient: jnp.full_like(w, g), params)
        updates.append(named(chain.update(gradients, chain.init(params), params)[0]))
    with_scales, without, decay_with_scales, decay_without = updates
    for path, role in roles(config).items():
        direction = with_scales[path] - decay_with_scales[path]
        expected = (without[path] - decay_without[path]) * rates[role]
        np.testing.assert_allclose(direction, expected, rtol=2e-4, atol=1e-7, err_msg=f"{path} ({role})")
        decay = {"hidden": 4, "output": 4}.get(role, 1) * rates[role]  # of the product of rate and weight decay
        np.testing.assert_allclose(decay_with_scales[path], decay_without[path] * decay, rtol=1e-5, err_msg=path)


@pytest.mark.slow
def test_folded_multipliers_train_as_multipliers_in_the_forward_pass():
    """SGD on w with W = m^−½ w, as the neural tangent parametrization is defined, gives the same W."""
    width, m = 4 * BASE, 4
    run = run_at(width, NTK(base_width=BASE), optimizer=SGD(learning_rate=0.1, decay=Constant(), weight_decay=0.05))
    own_roles = roles(run.model)
    factors = jax.tree_util.tree_map_with_path(
        lambda path, _: m**-0.5 if own_roles[path_name(path)] in ("hidden", "output") else 1.0, start(run).params
    )
    plain = run.replace(model=run.model.replace(parametrization=Parametrization()))
    own = jax.tree.map(jnp.divide, start(run).params, factors)  # w
    chain, source = plain.optimizer.transformation(0.1), run.task.load()
    moments = chain.init(own)
    gradient_of = fast_jit(
        jax.grad(lambda w, batch: loss(jax.tree.map(jnp.multiply, w, factors), plain, batch, None)[0])
    )
    for step in range(3):
        gradient = gradient_of(own, source.batch(run.data_key, step))
        updates, moments = chain.update(gradient, moments, own)
        own = jax.tree.map(jnp.add, own, updates)
    assert_close(trained(run), jax.tree.map(jnp.multiply, own, factors))


@pytest.mark.slow
def test_coordinate_check_passes_under_mup_and_fails_under_the_standard_parametrization():
    slopes = {}
    for kind in (MuP(base_width=BASE), Parametrization()):
        check = coordinate_check(run_at(BASE, kind), (16, 128), steps=2)
        slopes[type(kind)] = {place: slope for place, slope in check.slopes.items() if "logits" not in place}
    assert max(slope[1:].max() for slope in slopes[MuP].values()) < 0.15
    assert slopes[MuP]["output"][-1] > slopes[MuP]["output"][0] - 0.1  # from −½ at initialisation towards 0
    assert max(slope[-1] for place, slope in slopes[Parametrization].items() if "update" in place) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [SGD(learning_rate=0.3), Muon(), Lion(learning_rate=3e-3), ScheduleFree()])
def test_coordinate_check_passes_under_mup_with_every_kind_of_optimizer(optimizer):
    run = run_at(BASE, MuP(base_width=BASE), optimizer=optimizer.replace(decay=Constant()))
    check = coordinate_check(run, (16, 64, 256), steps=3)
    assert max(slope[1:].max() for place, slope in check.slopes.items() if "logits" not in place) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MuP(base_width=BASE, base_layers=1, depth_rate_power=0.5), NTK(base_width=BASE)])
def test_scanned_layers_train_as_unrolled_layers(kind):
    run = run_at(2 * BASE, kind, optimizer=AdamW(weight_decay=0.1))
    scanned = trained(run, layout="scanned")
    assert_close(model.weights.with_layout(scanned, "unrolled"), trained(run), atol=1e-5)


def test_rates_of_layers_fall_with_the_depth():
    kind = ByRole(base_width=BASE, base_layers=1, depth_rate_power=0.5)
    config = MODEL.replace(layers=4, parametrization=kind)
    rates = named(weight_scales(model.init(jax.random.key(0), config), config, 0).rate)
    for path, rate in rates.items():
        np.testing.assert_allclose(rate, 0.5 if path.startswith("blocks/") else 1.0, rtol=1e-6, err_msg=path)


@pytest.mark.long
def test_an_encoder_has_the_factors_of_its_own_width():
    config = at_width(MODEL, 4 * BASE).replace(parametrization=MuP(base_width=BASE))
    config = config.with_encoder(d_model=2 * BASE, feed_forward=Dense(d_ff=5))
    rates = named(weight_scales(model.init(jax.random.key(0), config), config, 0).rate)
    assert rates["blocks/0/feed_forward/up"] == pytest.approx(1 / 4)
    assert rates["encoder/blocks/0/feed_forward/up"] == pytest.approx(1 / 2)
    assert rates["encoder/embedding/tokens"] == 1


def test_factors_of_a_role_multiply_scale_rate_and_decay():
    """`Role.init`, `rate` and `decay`, at the base width: a group of weights with its own numbers."""
    kind = ByRole(base_width=BASE, vector=Role(init=2.0, rate=3.0, decay=5.0))
    run, standard = run_at(BASE, kind), run_at(BASE, Parametrization())
    assert_close(
        {"x": start(run).params.embedding}, {"x": jax.tree.map(lambda w: 2 * w, start(standard).params.embedding)}
    )
    scales = weight_scales(start(run).params, run.model, 0)
    for path, role in roles(run.model).items():
        own = (named(scales.rate)[path], named(scales.decay)[path])
        assert own == ((3.0, 5.0) if role == "vector" else (1.0, 1.0))


@pytest.mark.long
def test_numbers_of_a_parametrization_are_leaves_that_share_a_program():
    one, other = (run_at(BASE, MuP(base_width=BASE, hidden=Role(rate_power=power))) for power in (1.0, 0.5))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, other)
    params = jax.vmap(lambda run: start(run).params)(stacked)
    assert named(params)["head/matrix"].shape[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_depth_scaled_residual_multiplies_each_update(exponent):
    own = MODEL.replace(layers=3, residual=DepthScaled(exponent=exponent, base_layers=2))
    other = MODEL.replace(layers=3, residual=ReZero(initial=(2 / 3) ** exponent))
    tokens = jnp.arange(5)[None]
    outputs = [model.apply(model.init(jax.random.key(0), config), config, tokens) for config in (own, other)]
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-6)
    other = own.replace(residual=DepthScaled(base_layers=3))
    assert not np.allclose(outputs[0], model.apply(model.init(jax.random.key(0), other), other, tokens))


def test_the_identity_of_runs_without_a_parametrization_does_not_change():
    assert "parametrization" not in canonical(MODEL)
    assert "parametrization" in canonical(MODEL.replace(parametrization=MuP(base_width=BASE)))


def test_mistakes_get_a_message():
    with pytest.raises(UserError, match=r"head\.tied is True with parametrization MuP; expected tied=False"):
        MODEL.replace(parametrization=MuP(base_width=BASE), head=LanguageModel(tied=True))
    MODEL.replace(
        parametrization=MuP(base_width=BASE), inputs=Tokens(std=1.0), head=LanguageModel(tied=True, scale_exponent=1.0)
    )
    with pytest.raises(UserError, match=r"parametrization is MuP with optimizer Lamb, whose gradient_degree is None"):
        run_at(BASE, MuP(base_width=BASE), optimizer=Lamb())
    with pytest.raises(UserError, match="role is 'wide'; expected one of: input, hidden, output, vector"):
        param(fan_in="d_model", role="wide")
