"""The schedule and the optimizer against Optax's own, and what only ours can do: be mapped."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer.components import Attention, Dense, LanguageModel
from flaxformer.config import ModelConfig
from flaxformer.core.params import table
from flaxformer.core.weight_axes import decay_mask
from flaxformer.model import init, specs
from flaxformer.training import AdamW, Constant, Cosine, InverseSqrt, Linear, learning_rate

STEPS, PEAK = 23, 0.3
rates = jax.jit(jax.vmap(learning_rate, in_axes=(None, 0, None)), static_argnums=2)


def schedule(config):
    return np.asarray(rates(config, jnp.arange(STEPS), STEPS))


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("final", [0.0, 0.25])
def test_linear_and_cosine_decay_equal_optax(warmup, final):
    ramp = optax.linear_schedule(PEAK / max(warmup, 1), PEAK, max(warmup - 1, 1))
    falls = {
        Linear(): optax.linear_schedule(PEAK, final * PEAK, STEPS - warmup),
        Cosine(): optax.cosine_decay_schedule(PEAK, STEPS - warmup, alpha=final),
        Constant(): optax.constant_schedule(PEAK),
    }
    for decay, fall in falls.items():
        config = AdamW(learning_rate=PEAK, warmup_steps=warmup, decay=decay, final_fraction=final)
        steps = range(STEPS)
        expected = [ramp(step) if step < warmup - 1 else fall(max(step - warmup, 0)) for step in steps]
        np.testing.assert_allclose(schedule(config), expected, rtol=1e-5)


def test_inverse_square_root_decay_is_that_of_vaswani():
    config = AdamW(learning_rate=PEAK, warmup_steps=7, decay=InverseSqrt())
    steps = np.arange(1, STEPS + 1)
    np.testing.assert_allclose(schedule(config), PEAK * 7**0.5 * np.minimum(steps**-0.5, steps * 7**-1.5), rtol=1e-5)


@pytest.mark.parametrize("decay", [Constant(), Cosine(), InverseSqrt(), Linear()], ids=str)
def test_every_schedule_is_finite_positive_at_first_and_never_above_the_peak(decay):
    for warmup in (0.0, 1.0, 5.0, STEPS, 2 * STEPS):
        values = schedule(AdamW(learning_rate=PEAK, warmup_steps=warmup, decay=decay))
        assert np.isfinite(values).all()
        assert values[0] > 0
        assert values.max() <= PEAK * (1 + 1e-6)
        assert (np.diff(values[: max(int(warmup) - 1, 0)]) > 0).all()


def quadratic(params):
    return jax.tree.map(lambda w: w - 1.0 + jnp.sin(3.0 * w), params)


@pytest.mark.long
@pytest.mark.every(4)
@pytest.mark.parametrize(("clip", "weight_decay"), [(None, None), (0.05, 0.1)])
def test_updates_equal_optax_adamw(clip, weight_decay):
    model = ModelConfig(vocabulary=5, layers=1, d_model=4, attention=Attention(heads=2), feed_forward=Dense(d_ff=3))
    params = reference = init(jax.random.key(0), model)
    config = AdamW(learning_rate=PEAK, beta1=0.8, beta2=0.9, epsilon=1e-3, clip=clip, weight_decay=weight_decay)
    ours = config.transformation(PEAK)
    parts = [] if clip is None else [optax.clip_by_global_norm(clip)]
    theirs = optax.chain(
        *parts, optax.adamw(PEAK, 0.8, 0.9, 1e-3, weight_decay=weight_decay or 0.0, mask=decay_mask(params))
    )
    state, reference_state = ours.init(params), theirs.init(reference)
    for _ in range(3):
        updates, state = ours.update(quadratic(params), state, params)
        params = optax.apply_updates(params, updates)
        updates, reference_state = theirs.update(quadratic(reference), reference_state, reference)
        reference = optax.apply_updates(reference, updates)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7), params, reference)


def test_all_numbers_can_be_mapped():
    def final(config):
        state, w = config.transformation(0.0).init(jnp.ones(3)), jnp.ones(3)
        for step in range(3):
            chain = config.transformation(learning_rate(config, step, 3))
            updates, state = chain.update(quadratic(w), state, w)
            w = optax.apply_updates(w, updates)
        return w

    numbers = {"learning_rate": [0.1, 0.3], "warmup_steps": [0.0, 2.0], "beta1": [0.9, 0.5], "beta2": [0.98, 0.5]}
    configs = AdamW(clip=jnp.full(2, 0.5), **{name: jnp.array(values) for name, values in numbers.items()})
    configs = configs.replace(epsilon=jnp.full(2, 1e-8), final_fraction=jnp.zeros(2))
    mapped = jax.jit(jax.vmap(final))(configs)
    for i in range(2):
        alone = AdamW(clip=0.5, **{name: values[i] for name, values in numbers.items()})
        np.testing.assert_allclose(mapped[i], jax.jit(final)(alone), rtol=1e-5)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_weight_decay_shrinks_matrices_and_nothing_else(layout):
    config = ModelConfig(head=LanguageModel(bias=True))
    mask = decay_mask(init(jax.random.key(0), config, layout))
    shrunk = {jax.tree_util.keystr(path, simple=True, separator="/").split("/")[-1]: on
              for path, on in jax.tree_util.tree_leaves_with_path(mask)}  # fmt: skip
    matrices = {"query", "key", "value", "out", "up", "down", "matrix"}
    assert {name for name, on in shrunk.items() if on} == matrices
    assert {path.split("/")[-1] for path, spec in table(specs(config)) if spec.decay} == matrices
