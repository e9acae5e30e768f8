"""Edits of activations: one mechanism reads and edits, in every architecture, layout and transformation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid import BASE, encoder_decoder, grid, model_and_tokens, rows, sparse_grid
from jaxtyping import Array, Float

from flaxformer.components import GRU, Attention, FeedForward, Rotary
from flaxformer.components.residuals import Residual
from flaxformer.config import Block
from flaxformer.core.params import Parameters, param
from flaxformer.core.points import Edits
from flaxformer.core.struct import static
from flaxformer.model import (
    activations_at,
    apply,
    extend,
    new_cache,
    points,
    run,
)
from flaxformer.model.weights import with_layout
from flaxformer.nn.linear import linear
from flaxformer.system.errors import UserError

STEPS = ("logits", "weights")
"""Points that are computed without a fused kernel."""


def close(x, y, tolerance=2e-5):
    """True if two arrays agree up to the rounding of their sizes."""
    return np.allclose(x, y, atol=tolerance * (1 + float(jnp.abs(y).max())), rtol=0, equal_nan=True)


@pytest.mark.every(2, "long")
@pytest.mark.every(3)
@grid
def test_every_point_that_is_read_is_what_an_edit_is_given(config):
    params, tokens, given = model_and_tokens(config)
    shapes = points(params, config, tokens, **given)
    assert {"embedded", "blocks/0/attention/heads", "blocks/1/attention/stream", "final", "output"} <= shapes.keys()
    assert ("encoder/blocks/0/attention/weights" in shapes) == (config.encoder is not None)
    assert "encoder/output" not in shapes

    @jax.jit
    def both(params):
        seen = {}

        def record(path, x):
            assert path not in seen
            seen[path] = x
            return x

        edit = {path: functools.partial(record, path) for path in shapes}
        return (
            activations_at(params, config, tokens, "*", **given),
            apply(params, config, tokens, edit=edit, **given),
            seen,
        )

    read, edited, seen = both(params)
    assert read.keys() == seen.keys() == shapes.keys()
    np.testing.assert_array_equal(edited, read["output"])
    for path, x in read.items():
        np.testing.assert_array_equal(seen[path], x, err_msg=path)
        assert (x.shape, x.dtype) == (shapes[path].shape, shapes[path].dtype), path


@pytest.mark.slow
@rows(1)
def test_an_identity_edit_changes_no_bit_where_the_kernel_stays_the_same(config):
    params, tokens, given = model_and_tokens(config)
    output = apply(params, config, tokens, **given)
    for path in points(params, config, tokens, **given):
        edited = apply(params, config, tokens, edit={path: lambda x: x}, **given)
        if path.endswith(STEPS):
            assert close(edited, output)
        else:
            np.testing.assert_array_equal(edited, output, err_msg=path)


@sparse_grid
def test_every_point_has_an_effect(config):
    """The derivative of the output by a change at any point is not zero."""
    params, tokens, given = model_and_tokens(config)
    shapes, dice = points(params, config, tokens, **given), np.random.default_rng(0)
    noise = {path: jnp.asarray(dice.normal(size=own.shape), own.dtype) for path, own in shapes.items()}
    probe = dice.normal(size=shapes["output"].shape)

    def total(factors):
        edit = {path: lambda x, path=path: x + factors[path] * noise[path] for path in shapes}
        return (probe * apply(params, config, tokens, edit=edit, **given)).sum()

    slopes = jax.jit(jax.grad(total))(dict.fromkeys(shapes, 0.0))
    assert {path: float(slope) for path, slope in slopes.items() if abs(slope) < 1e-6} == {}


@pytest.mark.parametrize("kind", ["embedded", "attention", "cross_attention", "feed_forward", "final", "output"])
def test_edits_of_one_kind_are_in_the_order_of_computation(kind):
    config = encoder_decoder(BASE)
    params, tokens, given = model_and_tokens(config)
    own = [path for path in points(params, config, tokens, **given) if kind in path]
    assert own
    assert own[0].startswith("encoder/") or kind in ("output", "cross_attention")


def test_an_empty_edit_is_the_same_program():
    params, tokens, given = model_and_tokens(BASE)

    def lowered(**more):
        return jax.jit(functools.partial(apply, config=BASE, **more)).lower(params, inputs=tokens).as_text()

    assert lowered() == lowered(edit={}) == lowered(edit=None)
    assert lowered() != lowered(edit={"final": lambda x: 2 * x})
    assert given == {}


SCANNED = {
    "alike": BASE.replace(layers=3),
    "pattern": BASE.replace(
        layers=4, pattern=(Block(attention=Attention(heads=3, window=2)), Block(attention=Attention(heads=2)))
    ),
    "shared": BASE.replace(layers=4, distinct_blocks=2),
    "grouped": BASE.replace(layers=4, distinct_blocks=2, sharing="group"),
    "recurrent": BASE.replace(layers=4, pattern=(Block(attention=GRU()), Block(attention=Attention(heads=2)))),
}


@pytest.mark.parametrize(
    "name",
    ["pattern", *(pytest.param(name, marks=pytest.mark.slow) for name in SCANNED if name != "pattern")],
)
@pytest.mark.slow
def test_scanned_layers_are_edited_one_by_one(name):
    """The body of a scan computes several layers; only those that the path names change."""
    config = SCANNED[name]
    params, tokens, _ = model_and_tokens(config)
    scanned = with_layout(params, "scanned")
    assert not isinstance(scanned.blocks, tuple)
    assert list(points(params, config, tokens)) == list(points(scanned, config, tokens))
    paths = [
        "blocks/1/attention/output",
        "blocks/2/feed_forward/input",
        "blocks/*/attention/stream",
        "blocks/[13]/*/output",
    ]
    paths += ["blocks/1/attention/weights", "blocks/3/attention/heads"] if config.layers > 3 else []
    for path in paths:
        edit = {path: lambda x: 0.5 * x}
        single = apply(params, config, tokens, edit=edit)
        assert not close(single, apply(params, config, tokens)), path
        assert close(apply(scanned, config, tokens, edit=edit), single), path
    assert close(jax.jit(lambda p: apply(p, config, tokens, edit=edit))(scanned), single)


def test_an_edit_of_one_layer_of_a_scan_is_applied_to_that_layer_alone():
    config = SCANNED["alike"]
    params, tokens, _ = model_and_tokens(config, "scanned")
    clean = activations_at(params, config, tokens, "blocks/*/attention/heads")
    found = activations_at(
        params, config, tokens, "blocks/*/attention/heads", edit={"blocks/1/attention/heads": lambda x: x - 7}
    )
    np.testing.assert_array_equal(found["blocks/0/attention/heads"], clean["blocks/0/attention/heads"])
    np.testing.assert_allclose(found["blocks/1/attention/heads"], clean["blocks/1/attention/heads"] - 7, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["block", "attention", "feed_forward", "dots"])
def test_edits_are_kept_by_rematerialisation(remat):
    params, tokens, _ = model_and_tokens(BASE)
    edit = {"blocks/1/attention/weights": lambda x: x[..., ::-1], "blocks/0/feed_forward/output": lambda x: 2 * x}
    want = apply(params, BASE, tokens, edit=edit)

    def total(params, remat):
        return run(params, BASE, tokens, {}, remat=remat, edits=Edits.of(edit)).output.sum()

    np.testing.assert_allclose(total(params, remat), want.sum(), rtol=1e-5)
    gradients = [jax.jit(jax.grad(total), static_argnums=1)(params, name) for name in (remat, "none")]
    for one, other in zip(*map(jax.tree.leaves, gradients), strict=True):
        assert close(one, other)


def test_edits_have_gradients_and_are_mapped():
    params, tokens, _ = model_and_tokens(BASE)

    @jax.jit
    def total(factor):
        return apply(params, BASE, tokens, edit={"blocks/0/attention/heads": lambda x: factor * x}).var()

    slope = jax.grad(total)(1.3)
    step = 1e-2
    np.testing.assert_allclose(slope, (total(1.3 + step) - total(1.3 - step)) / (2 * step), rtol=2e-2)
    factors = jnp.array([0.0, 1.0, -2.0])
    np.testing.assert_allclose(jax.vmap(total)(factors), [total(factor) for factor in factors], rtol=1e-5)


def test_edited_weights_are_those_that_multiply_the_values():
    """An edit of the weights of a model that would take a fused kernel: all weight on the first token."""
    params, tokens, _ = model_and_tokens(BASE)
    first = {"blocks/0/attention/weights": lambda x: jnp.zeros_like(x).at[..., 0].set(1)}
    found = activations_at(params, BASE, tokens, ["blocks/0/attention/heads", "blocks/0/attention/value"], edit=first)
    value, mixed = found["blocks/0/attention/value"], found["blocks/0/attention/heads"]
    np.testing.assert_allclose(mixed, jnp.broadcast_to(value[:, :1], mixed.shape), rtol=1e-6)
    replaced = {"blocks/0/attention/heads": lambda x: jnp.broadcast_to(value[:, :1], x.shape)}  # takes a fused kernel
    assert close(apply(params, BASE, tokens, edit=first), apply(params, BASE, tokens, edit=replaced))


def test_several_edits_of_one_point_are_applied_in_order():
    params, tokens, _ = model_and_tokens(BASE)
    edit = {"final": lambda x: x + 1, "fin*": lambda x: 3 * x}
    clean = activations_at(params, BASE, tokens, "final")["final"]
    found = activations_at(params, BASE, tokens, "final", edit=edit)["final"]
    np.testing.assert_allclose(found, 3 * (clean + 1), rtol=1e-6)


@pytest.mark.long
def test_an_encoder_is_edited_and_the_decoder_reads_the_result():
    config = encoder_decoder(BASE)
    params, tokens, given = model_and_tokens(config)
    memory = activations_at(params, config, tokens, "encoder/final", **given)["encoder/final"]
    edit = {"encoder/final": lambda x: 2 * x}
    doubled = apply(params, config, tokens, memory=2 * memory, memory_valid=given["source_valid"])
    np.testing.assert_allclose(apply(params, config, tokens, edit=edit, **given), doubled, rtol=1e-4, atol=1e-5)


class Hidden(FeedForward):
    """relu(x W) Wᵀ, whose hidden vectors are a point."""

    hidden: int = static(5)

    class Weights(Parameters):
        """One matrix."""

        up: Float[Array, "d_model hidden"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        hidden = context.edit("hidden", jax.nn.relu(linear(x, weights.up)))
        return linear(hidden, weights.up.T)


def test_a_component_of_a_user_has_points_of_its_own():
    config = BASE.replace(feed_forward=Hidden())
    for layout in ("unrolled", "scanned"):
        params, tokens, _ = model_and_tokens(config, layout)
        path = "blocks/1/feed_forward/hidden"
        assert points(params, config, tokens)[path].shape == (*tokens.shape, 5)
        off = activations_at(params, config, tokens, "blocks/*/feed_forward/*", edit={path: jnp.zeros_like})
        np.testing.assert_array_equal(off["blocks/1/feed_forward/output"], 0)
        assert jnp.abs(off["blocks/0/feed_forward/output"]).max() > 0


class TwoVectors(Residual):
    """A residual stream of two vectors per token, as a pytree."""

    def begin(self, x, layers):
        return {"a": x, "b": jnp.zeros_like(x)}

    def read(self, weights, x, context):
        return x["a"] + x["b"]

    def join(self, weights, x, update, context):
        return {"a": x["b"], "b": x["a"] + update}

    def end(self, x):
        return x["a"] - x["b"]


def test_a_residual_stream_of_several_arrays_is_edited_as_a_whole():
    config = BASE.replace(residual=TwoVectors())
    params, tokens, _ = model_and_tokens(config)
    path = "blocks/0/attention/stream"
    swap = {path: lambda x: {"a": x["b"], "b": x["a"]}}
    assert not close(apply(params, config, tokens, edit=swap), apply(params, config, tokens))
    with pytest.raises(UserError, match=r"returns float32\[2, 7, 12\] at blocks/0/attention/stream; expected a dict"):
        apply(params, config, tokens, edit={path: lambda x: x["a"]})


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, None])
def test_decoding_with_edits_agrees_with_the_whole_sequence(heads):
    config = BASE.replace(positions=Rotary(), attention=Attention(heads=3, d_head=4, key_value_heads=heads))
    params, tokens, _ = model_and_tokens(config)
    edit = {
        "blocks/0/attention/heads": lambda x: x.at[..., 1, :].set(0),
        "blocks/1/attention/key": lambda x: 2 * x,
        "blocks/1/attention/weights": lambda x: x / 2,
        "final": lambda x: x + 1,
        "output": lambda x: 3 * x,
    }
    whole = apply(params, config, tokens, edit=edit)
    cache, parts = new_cache(params, config, tokens.shape[:1], 11), []
    for start, end in ((0, 6), (6, 7)):
        output, cache = extend(params, config, tokens[:, start:end], cache, edit=edit)
        parts.append(output)
    assert close(jnp.concatenate(parts, 1), whole)


class Slow(Attention):
    """Attention without a decoding state."""

    def apply(self, weights, x, context):
        return super().apply(weights, x, context)


def test_points_within_a_mixer_without_a_state_are_refused_in_decoding():
    config = BASE.replace(attention=Slow(heads=3))
    params, tokens, _ = model_and_tokens(config)
    cache = new_cache(params, config, tokens.shape[:1], 11)
    with pytest.raises(
        UserError, match=r"'blocks/0/attention/heads', which matches no point.*attention/\(input, output"
    ):
        extend(params, config, tokens, cache, edit={"blocks/0/attention/heads": jnp.zeros_like})


MISTAKES = {
    "typo": (
        {"blocks/1/attention/haeds": jnp.zeros_like},
        r"edit has 'blocks/1/attention/haeds', which matches no point of this model; did you mean "
        r"'blocks/1/attention/heads'\? It has: embedded, blocks/0,1/attention/\(input, key, value, query, logits, "
        r"weights, heads, output, stream\), blocks/0,1/feed_forward/\(input, output, stream\), final, output$",
    ),
    "layer": ({"blocks/2/attention/heads": jnp.zeros_like}, "'blocks/2/attention/heads', which matches no point"),
    "pattern": ({"blocks/*/cross_attention/*": jnp.zeros_like}, "which matches no point"),
    "shape": (
        {"blocks/*/attention/heads": lambda x: x.sum(-1)},
        r"edit\['blocks/\*/attention/heads'\] returns float32\[2, 7, 3\] at blocks/0/attention/heads; expected "
        r"float32\[2, 7, 3, 4\]",
    ),
    "dtype": ({"final": lambda x: x > 0}, r"returns bool\[2, 7, 12\] at final; expected float32\[2, 7, 12\]"),
    "nothing": ({"final": lambda x: None}, "returns None at final; expected float32"),
    "no function": ({"final": 0.0}, r"edit\['final'\] is 0.0; expected a function"),
    "no mapping": (["final"], "edit is a list; expected a mapping"),
    "key": ({3: jnp.zeros_like}, "edit has the key 3; expected the path"),
}


@pytest.mark.parametrize(
    ("name", "layout"), [*((name, "unrolled") for name in MISTAKES), ("typo", "scanned"), ("shape", "scanned")]
)
def test_mistakes_are_one_message(name, layout):
    params, tokens, _ = model_and_tokens(BASE, layout)
    edit, message = MISTAKES[name]
    with pytest.raises(UserError, match=message):
        apply(params, BASE, tokens, edit=edit)


def test_a_point_that_is_read_must_exist():
    params, tokens, _ = model_and_tokens(BASE)
    with pytest.raises(
        UserError, match="at has 'blocks/0/attention/wights', which matches no point of this model; did"
    ):
        activations_at(params, BASE, tokens, ["final", "blocks/0/attention/wights"])


def test_a_long_list_of_points_has_layers_as_a_range():
    config = BASE.replace(layers=5)
    params, tokens, _ = model_and_tokens(config)
    with pytest.raises(UserError, match=r"blocks/0-4/feed_forward/\(input, output, stream\), final"):
        apply(params, config, tokens, edit={"finale": jnp.zeros_like})
