"""Coordinate check: slopes of powers, proportional sizes, and a linear model with known slopes."""

import functools

import jax
import numpy as np
import pytest

from flaxformer.components import LSTM, NO_NORM, Attention, Dense, NoPositions, Normal, Tokens
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.core.params import fold_in_name
from flaxformer.diagnostics import CoordinateCheck, coordinate_check
from flaxformer.diagnostics.coordinate import activation_sizes, at_width
from flaxformer.model import apply
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Constant, Run, start

TASK = Copy(symbols=10, length=4, batch_size=3)
LINEAR = Run(
    model=ModelConfig(
        vocabulary=11, layers=0, attention=Attention(heads=1), norm=NO_NORM, positions=NoPositions(),
        inputs=Tokens(frozen=True), initializer=Normal(deviation=1e-3),
    ),
    task=TASK,
    optimizer=AdamW(learning_rate=1.0, decay=Constant()),
)  # fmt: skip
WIDTHS = (64, 1024)


@functools.cache
def checked():
    return coordinate_check(LINEAR, WIDTHS, steps=2)


def test_the_slope_of_a_power_is_its_exponent():
    widths, exponents = (4, 8, 64), np.array([-1.0, 0.0, 0.5, 2.0])
    sizes = 7 * np.power(np.array(widths, float), exponents[:, None])
    np.testing.assert_allclose(CoordinateCheck(widths, {"x": sizes}).slopes["x"], exponents, atol=1e-12)
    # For points off a line, the fit is NumPy's.
    sizes = np.random.default_rng(0).uniform(1, 9, (4, 3))
    fitted = [np.polyfit(np.log(widths), np.log(row), 1)[0] for row in sizes]
    np.testing.assert_allclose(CoordinateCheck(widths, {"x": sizes}).slopes["x"], fitted, atol=1e-12)
    assert np.isnan(CoordinateCheck(widths, {"x": np.array([[1.0, 0.0, 2.0]])}).slopes["x"]).all()


def test_outputs_of_a_linear_model_grow_as_the_square_root_of_the_width_and_after_a_step_as_the_width():
    """z = x W with D standard normal entries in x. At initialisation, W is random and |z| ~ √D. Adam's first step
    subtracts the learning rate times the gradient's sign, which is that of x, so that |z| ~ D."""
    check = checked()
    assert check.widths == WIDTHS
    assert {place: sizes.shape for place, sizes in check.sizes.items()} == dict.fromkeys(
        ["embedded", "final", "output"], (3, 2)
    )
    np.testing.assert_allclose(check.slopes["embedded"], 0, atol=0.05)
    np.testing.assert_allclose(check.sizes["embedded"], np.sqrt(2 / np.pi), rtol=0.1)
    np.testing.assert_allclose(check.slopes["output"], [0.5, 1, 1], atol=0.1)
    np.testing.assert_allclose(check.sizes["output"][0], 1e-3 * np.sqrt(2 / np.pi * np.array(WIDTHS)), rtol=0.3)


@pytest.mark.slow
def test_sizes_are_measured_on_the_run_s_training_batches():
    run = LINEAR.replace(model=at_width(LINEAR.model, WIDTHS[0]))
    batch = TASK.load().batch(fold_in_name(jax.random.key(0), "data"), 0)
    logits = np.asarray(apply(start(run).params, run.model, batch.inputs), np.float64)
    size = np.abs(logits)[np.asarray(batch.weights) > 0].mean()
    np.testing.assert_allclose(checked().sizes["output"][0, 0], size, rtol=1e-5)


def test_every_branch_of_every_layer_is_measured():
    model = ModelConfig(vocabulary=11, layers=2, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=12))
    run = LINEAR.replace(model=model)
    sizes = jax.eval_shape(functools.partial(activation_sizes, steps=3), run, TASK.load())
    branches = {"attention": ("logits", "update", "stream"), "feed_forward": ("update", "stream")}
    places = {f"blocks/{i}/{branch}/{x}" for i in range(2) for branch, xs in branches.items() for x in xs}
    assert sizes.keys() == {"embedded", "final", "output"} | places
    assert {x.shape for x in sizes.values()} == {(4,)}


def test_at_width_keeps_sizes_in_proportion():
    model = ModelConfig(
        d_model=12, attention=Attention(heads=4, key_value_heads=2, d_head=5), feed_forward=Dense(d_ff=30)
    )
    sizes = lambda m: (m.d_model, *(m.sizes[x] for x in ("heads", "key_value_heads", "d_head", "d_ff")))  # noqa: E731
    assert sizes(at_width(model, 24)) == (24, 4, 2, 10, 60)
    assert sizes(at_width(model, 24, "d_head")) == (24, 8, 4, 5, 60)
    assert sizes(at_width(model, 6, "d_head")) == (6, 2, 1, 5, 15)
    both = at_width(model.with_encoder(d_model=8, attention=Attention(heads=4)), 24)
    assert (both.encoder.d_model, both.encoder.attention.heads, both.encoder.feed_forward.d_ff) == (16, 4, 60)
    cross = at_width(model.replace(d_memory=6, cross_attention=Attention(heads=2, d_head=7)), 24, "d_head")
    assert (cross.d_memory, cross.cross_attention) == (12, Attention(heads=4, d_head=7))
    assert at_width(recurrent_model(LSTM(), d_model=5), 10) == recurrent_model(LSTM(), d_model=10)


def test_widths_with_fractional_sizes_raise_an_error_that_names_the_field():
    model = ModelConfig(d_model=12, attention=Attention(heads=4), feed_forward=Dense(d_ff=30))
    with pytest.raises(UserError, match=r"feed_forward\.d_ff is 30 at d_model 12; expected a whole number at 13"):
        at_width(model, 13)
    with pytest.raises(UserError, match=r"attention\.heads is 4 at d_model 12; expected a whole number at 20"):
        at_width(model.replace(feed_forward=Dense()), 20, "d_head")
    with pytest.raises(UserError, match=r"attention\.heads is 4; expected a divisor of d_model 18"):
        at_width(model, 18)
    with pytest.raises(UserError, match="fixed is 'width'; expected one of heads, d_head"):
        at_width(model, 24, "width")
    with pytest.raises(UserError, match=r"widths is \[64, 64\]; expected at least two different widths"):
        coordinate_check(LINEAR, (64, 64))
