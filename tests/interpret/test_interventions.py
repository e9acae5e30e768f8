"""Interventions as data: what they replace, for which heads and positions, and how they combine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid import BASE, model_and_tokens

from flaxformer.components import Attention
from flaxformer.config import ModelConfig
from flaxformer.interpret import ablate, combine, means, named_maps, patch, resample
from flaxformer.model import activations_at, apply, init
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import Run

CONFIG = BASE.replace(attention=Attention(heads=3, d_head=5, key_value_heads=1))
PARAMS, TOKENS, _ = model_and_tokens(CONFIG)
HEADS = "blocks/1/attention/heads"


def at(path, edit=None, tokens=TOKENS):
    return np.asarray(activations_at(PARAMS, CONFIG, tokens, path, edit=edit)[path])


AXES = {
    "blocks/1/attention/query": (2, 1),
    "blocks/1/attention/heads": (2, 1),
    "blocks/1/attention/logits": (1, 2),
    "blocks/1/attention/weights": (1, 2),
}
"""Axes of heads and of positions of the activations [2, …] at a point."""


@pytest.mark.every(2, "long")
@pytest.mark.every(3)
@pytest.mark.parametrize("path", AXES)
@pytest.mark.parametrize("heads", [None, [0, 2], [-1], 1])
@pytest.mark.parametrize("positions", [None, [0, 6], [-2]])
def test_ablation_replaces_the_chosen_heads_and_positions_alone(path, heads, positions):
    before = at(path)
    after = at(path, ablate(path, heads=heads, positions=positions, value=-3.5))
    want, (head_axis, token_axis) = before.copy(), AXES[path]
    index = [slice(None)] * before.ndim
    for n in range(3) if heads is None else np.atleast_1d(heads):
        for t in range(7) if positions is None else positions:
            index[head_axis], index[token_axis] = n, t
            want[tuple(index)] = -3.5
    np.testing.assert_array_equal(after, want)


def test_a_branch_stands_for_its_output_or_its_heads():
    assert list(ablate("blocks/1/attention")) == ["blocks/1/attention/output"]
    assert list(ablate("blocks/*/attention", heads=[0])) == ["blocks/*/attention/heads"]
    assert list(ablate(["embedded", "blocks/0/feed_forward"])) == ["embedded", "blocks/0/feed_forward/output"]


def test_keys_are_selected_by_key_value_head_and_by_position_of_the_key():
    path = "blocks/0/attention/key"
    after = at(path, ablate(path, heads=[0], positions=[3]))
    assert after.shape == (2, 7, 1, 5)
    np.testing.assert_array_equal(after[:, 3], 0)
    np.testing.assert_array_equal(np.delete(after, 3, 1), np.delete(at(path), 3, 1))


def test_a_patched_model_continues_as_the_model_that_it_is_patched_from():
    """All of the stream from another input gives the output of that input; one position gives it for later ones."""
    other = (TOKENS + 1) % CONFIG.vocabulary
    clean = activations_at(PARAMS, CONFIG, other, "blocks/0/feed_forward/stream")
    want = apply(PARAMS, CONFIG, other)
    np.testing.assert_allclose(apply(PARAMS, CONFIG, TOKENS, edit=patch(clean)), want, atol=1e-5)
    one = apply(PARAMS, CONFIG, TOKENS, edit=patch(clean, positions=[4]))
    before = apply(PARAMS, CONFIG, TOKENS)
    np.testing.assert_allclose(one[:, :4], before[:, :4], atol=1e-6)
    assert all(float(jnp.abs(one[:, t] - before[:, t]).max()) > 1e-4 for t in (4, 5, 6))


def test_resampling_takes_all_points_from_one_other_sequence():
    tokens = jax.random.randint(jax.random.key(3), (5, 7), 0, CONFIG.vocabulary)
    paths = ["blocks/0/attention/heads", "final"]
    before = activations_at(PARAMS, CONFIG, tokens, paths)
    found = set()
    for seed in range(6):
        edit = resample(paths, jax.random.key(seed))
        after = activations_at(PARAMS, CONFIG, tokens, "blocks/0/attention/heads", edit=edit)[
            "blocks/0/attention/heads"
        ]
        shift = next(s for s in range(5) if np.array_equal(after, np.roll(before["blocks/0/attention/heads"], -s, 0)))
        final = edit["final"](before["final"])
        np.testing.assert_array_equal(final, np.roll(before["final"], -shift, 0))
        found.add(shift)
    assert len(found) > 1
    assert found <= {1, 2, 3, 4}


def test_means_leave_out_padding():
    dice = np.random.default_rng(0)
    valid = np.arange(7)[None] < np.array([[4], [7]])
    for path, shape, axis in (
        ("blocks/0/attention/heads", (2, 7, 3, 5), 1),
        ("blocks/0/attention/weights", (2, 3, 7, 7), 2),
        ("embedded", (2, 7, 12), 1),
    ):
        x = dice.normal(size=shape).astype(np.float32)
        rows = np.moveaxis(x, axis, 1)  # a view with the positions first
        rows[0, 4:] = np.nan
        whole = means({path: jnp.asarray(x)}, jnp.asarray(valid))[path]
        np.testing.assert_allclose(np.moveaxis(whole, axis, 1)[0, 0], rows[valid].mean(0), rtol=1e-5, atol=1e-6)
        each = np.moveaxis(means({path: jnp.asarray(x)}, jnp.asarray(valid), per_position=True)[path], axis, 1)
        np.testing.assert_allclose(each[0, 2], rows[:, 2].mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(each[0, 5], rows[1, 5], rtol=1e-5, atol=1e-6)


def test_combined_edits_of_one_point_are_applied_in_order():
    edit = combine(ablate(HEADS, heads=[0], value=1.0), ablate(HEADS, heads=[0, 1], value=2.0), ablate("final"))
    after = at(HEADS, edit)
    np.testing.assert_array_equal(after[:, :, :2], 2)
    assert at(HEADS, combine(*[ablate(HEADS, heads=[n], value=n) for n in range(3)]))[0, 0, :, 0].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(at("final", edit), 0)


def test_edits_are_arguments_of_compiled_and_mapped_functions():
    values = means(activations_at(PARAMS, CONFIG, TOKENS, HEADS))
    compiled = jax.jit(lambda edit: apply(PARAMS, CONFIG, TOKENS, edit=edit))
    single = [apply(PARAMS, CONFIG, TOKENS, edit=patch(values, heads=n)) for n in range(3)]
    for n, want in enumerate(single):
        np.testing.assert_allclose(compiled(patch(values, heads=n)), want, atol=1e-5)
    assert compiled._cache_size() == 1
    mapped = jax.vmap(lambda n: apply(PARAMS, CONFIG, TOKENS, edit=patch(values, heads=n)))(jnp.arange(3))
    np.testing.assert_allclose(mapped, jnp.stack(single), atol=1e-5)
    masks = jax.vmap(lambda mask: apply(PARAMS, CONFIG, TOKENS, edit=patch(values, heads=mask)))(jnp.eye(3, dtype=bool))
    np.testing.assert_allclose(masks, mapped, atol=1e-5)


MISTAKES = {
    "head out of range": (
        lambda: ablate("blocks/1/attention", heads=[0, 3]),
        "heads has 3 for 'blocks/1/attention/heads', which has 3 of them; expected 0 to 2",
    ),
    "position out of range": (lambda: ablate("final", positions=[7]), "positions has 7 for 'final', which has 7"),
    "no heads": (lambda: ablate("final", heads=[0]), "heads is given for 'final', which has none; expected one of the"),
    "no whole number": (lambda: ablate(HEADS, heads=[0.5]), r"heads is \[0.5\] for '.*'; expected whole numbers"),
    "booleans": (lambda: ablate(HEADS, heads=jnp.ones(2, bool)), "heads has 2 booleans for .*; expected 3"),
    "values": (
        lambda: patch({HEADS: jnp.zeros((2, 6, 3, 5))}),
        r"the values for '.*heads' have shape \[2, 6, 3, 5\]; expected one that broadcasts to \[2, 7, 3, 5\]",
    ),
    "path": (lambda: ablate("blocks/1/attention/haeds"), "did you mean 'blocks/1/attention/heads'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_message(name):
    make, message = MISTAKES[name]
    with pytest.raises(UserError, match=message):
        apply(PARAMS, CONFIG, TOKENS, edit=make())


def test_resampling_needs_two_sequences():
    with pytest.raises(UserError, match="resample of 'final' has 1 sequence; expected at least 2"):
        apply(PARAMS, CONFIG, TOKENS[:1], edit=resample("final", jax.random.key(0)))


@pytest.mark.slow
def test_named_maps_are_mean_weights_of_all_sequences_and_are_bounded():
    """Every number is the mean over the sequences of one weight that `activations_at` gives."""
    run = Run(
        model=ModelConfig(vocabulary=6, layers=2, d_model=12, attention=Attention(heads=3)),
        task=Copy(symbols=5, length=4, batch_size=3, evaluation_batches=2),
    )
    params, batches = init(jax.random.key(0), run.model), run.task.load().evaluation()
    path = "blocks/1/attention/weights"
    found = named_maps(params, run, batches, path, positions=5)
    inputs = batches.inputs.reshape(-1, batches.inputs.shape[-1])
    weights = np.asarray(activations_at(params, run.model, inputs, path)[path], np.float64).mean(0)
    assert len(found) == 3 * 5 * 5
    for head, query, key in ((0, 0, 0), (2, 4, 1), (1, 3, 3)):
        np.testing.assert_allclose(found[f"attention_map/{path}/{head}/{query}/{key}"], weights[head, query, key], 1e-4)
    with pytest.raises(UserError, match=r"at has the point 'final'; expected attention weights"):
        named_maps(params, run, batches, "final")
    wide = run.replace(model=run.model.replace(attention=Attention(heads=12)), task=run.task.replace(length=8))
    with pytest.raises(UserError, match=r"have 6,144 numbers; expected at most 4,096: choose fewer layers"):
        named_maps(init(jax.random.key(0), wide.model), wide, wide.task.load().evaluation())
