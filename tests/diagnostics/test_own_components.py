"""Diagnostics of user components with other intermediates than attention, and of layers that differ."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BASE, LENGTHS, B, S, T, batch_of, in_layout, run_of, state_of
from jaxtyping import Array, Float

from flaxformer.components import SANDWICH, Aux, Dense, FeedForward, Residual, RMSNorm, TokenMixer
from flaxformer.config import Block
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import static
from flaxformer.diagnostics import diagnose, first_nonfinite, summary
from flaxformer.diagnostics.activations import measure_activations, rms
from flaxformer.diagnostics.attention import attention_statistics
from flaxformer.diagnostics.coordinate import activation_sizes, at_width
from flaxformer.diagnostics.places import is_in_every_layer, layer_index, split_layers, stack_layers, without_layer
from flaxformer.diagnostics.weights import norms_by_place
from flaxformer.model import Intermediates, apply_with_intermediates, specs
from flaxformer.model.blocks import BlockIntermediates, BranchActivations
from flaxformer.model.layout import Periods
from flaxformer.nn.attention import masked_softmax
from flaxformer.tasks import Batch


class RunningMean(TokenMixer):
    """Mean of the tokens so far, times a square matrix."""

    class Weights(Parameters):
        matrix: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    heads: int = static(2)

    def apply(self, weights, x, context):
        count = jnp.ones_like(x).cumsum(-2)
        return (x.cumsum(-2) / count) @ weights.matrix


class Routed(FeedForward):
    """Two networks, mixed by a router, whose logits are one per token and network."""

    class Weights(Parameters):
        router: Float[Array, "d_model networks"] = param(fan_in="d_model")
        up: Float[Array, "networks d_model d_ff"] = param(fan_in="d_model")
        down: Float[Array, "networks d_ff d_model"] = param(fan_in="d_ff")

    networks: int = static(2)
    d_ff: int = static(5)

    def apply(self, weights, x, context):
        logits = x @ weights.router
        hidden = jax.nn.relu(jnp.einsum("...d,ndf->...nf", x, weights.up))
        outputs = jnp.einsum("...nf,nfd->...nd", hidden, weights.down)
        shares = jax.nn.softmax(logits)
        mixed = (outputs * shares[..., None]).sum(-2)
        load = shares.reshape(-1, self.networks).mean(0)
        found = Aux(
            losses={"balance": jnp.square(load).sum()},
            statistics={"load": load, "largest": load.max()},
            intermediates={"logits": logits, "hidden": hidden},
        )
        return mixed, found


OWN = BASE.replace(attention=RunningMean(), feed_forward=Routed())


@pytest.fixture(scope="module", params=["unrolled", "scanned"])
def own(request):
    run = run_of(OWN)
    return run, state_of(run, request.param), batch_of(run)


@pytest.mark.long
@pytest.mark.every(2)
def test_mixer_without_logits_has_all_diagnostics_except_attention_statistics(own):
    run, state, batch = own
    found = diagnose(state, run, batch)
    assert found.attention == {}
    stages = ("attention/update", "attention/stream", "feed_forward/update", "feed_forward/stream")
    assert found.rms.keys() == {"embedded", "final", "output", *(f"blocks/{stage}" for stage in stages)}
    assert found.gradient_norm["blocks/attention/matrix"].shape == (2,)
    assert all(np.isfinite(x) and x > 0 for name, x in summary(found).items() if name.startswith("rms"))


@pytest.mark.every(2, "long")
def test_losses_statistics_and_intermediates_of_a_component_are_returned_and_recorded(own):
    run, state, batch = own
    found, table = diagnose(state, run, batch), summary(diagnose(state, run, batch))
    _, kept = jax.jit(apply_with_intermediates)(state.params, run.model, batch.inputs, **batch.arguments)
    branches = [one.feed_forward for one in kept.blocks]
    assert [one.intermediates["hidden"].shape for one in branches] == [(B, T, 2, 5)] * 2
    loads = np.stack([jax.nn.softmax(one.intermediates["logits"]).mean((0, 1)) for one in branches])
    np.testing.assert_allclose(found.statistics["blocks/feed_forward/load"], loads, rtol=1e-5)
    np.testing.assert_allclose(found.losses["blocks/feed_forward/balance"], np.square(loads).sum(), rtol=1e-5)
    np.testing.assert_allclose(table["loss/blocks/feed_forward/balance"], np.square(loads).sum(), rtol=1e-5)
    for name, wanted in {"min": loads.min(), "mean": loads.mean(), "max": loads.max()}.items():
        np.testing.assert_allclose(table[f"statistics/blocks/feed_forward/load/{name}"], wanted, rtol=1e-5)
    assert all(x.shape == () for x in table.values())


class Reporting(RMSNorm):
    """RMSNorm that returns its output as an intermediate too."""

    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return y, Aux(intermediates={"normalised": y})


def test_intermediates_of_a_norm_begin_with_its_place():
    run = run_of(OWN.replace(norm_kind=Reporting(), norm=SANDWICH))
    state, batch = state_of(run), batch_of(run)
    _, kept = jax.jit(apply_with_intermediates)(state.params, run.model, batch.inputs, **batch.arguments)
    found = kept.blocks[1].feed_forward
    np.testing.assert_array_equal(found.intermediates["pre/normalised"], found.input)
    np.testing.assert_allclose(found.intermediates["post_branch/normalised"], found.update, rtol=1e-6)


@pytest.mark.every(2, "long")
def test_first_non_finite_place_is_found_in_user_components(own):
    run, state, batch = own
    assert first_nonfinite(state, run, batch) is None
    if isinstance(state.params.blocks, tuple):
        bad = state.params.blocks[1]
        bad = bad.replace(feed_forward=bad.feed_forward.replace(up=bad.feed_forward.up.at[0, 0, 0].set(jnp.nan)))
        blocks: Any = (state.params.blocks[0], bad)
    else:
        blocks = state.params.blocks
        up = blocks.feed_forward.up.at[1, 0, 0, 0].set(jnp.nan)
        blocks = blocks.replace(feed_forward=blocks.feed_forward.replace(up=up))
    found = first_nonfinite(state.replace(params=state.params.replace(blocks=blocks)), run, batch)
    assert found.place == "blocks/1/feed_forward/update"


class TwoStreams(Residual):
    """Residual rule with a stream of two arrays: the sum of all updates, and half of it twice."""

    def begin(self, x, layers):
        return {"one": x, "two": jnp.stack([x, x], -2)}

    def read(self, weights, stream, context):
        return stream["one"] + stream["two"].sum(-2)

    def join(self, weights, stream, update, context):
        return {"one": stream["one"] + update, "two": stream["two"] + update[..., None, :] / 2}

    def end(self, stream):
        return stream["one"]


def test_residual_streams_of_several_arrays_are_measured_over_real_tokens():
    run = run_of(OWN.replace(residual=TwoStreams(), layers=1))
    state, batch = state_of(run), batch_of(run)
    found = diagnose(state, run, batch).rms["blocks/attention/stream"]
    kept = jax.jit(apply_with_intermediates)(state.params, run.model, batch.inputs, **batch.arguments)[1]
    stream = kept.blocks[0].attention.stream
    rows = [np.concatenate([stream["one"][b, :n].ravel(), stream["two"][b, :n].ravel()]) for b, n in enumerate(LENGTHS)]
    np.testing.assert_allclose(found, [np.sqrt(np.mean(np.square(np.concatenate(rows))))], rtol=1e-5)


def test_coordinate_check_scales_and_measures_user_components():
    wide = at_width(OWN, 12)
    assert (wide.attention, wide.feed_forward) == (RunningMean(), Routed(d_ff=10))
    assert at_width(OWN, 12, "d_head").attention == RunningMean(heads=4)
    run = run_of(OWN)
    sizes = jax.eval_shape(lambda: activation_sizes(run, run.task.load(), steps=1))
    assert {place for place in sizes if place.startswith("blocks/0")} == {
        f"blocks/0/{branch}/{stage}" for branch in ("attention", "feed_forward") for stage in ("update", "stream")
    }


def test_fan_in_and_fan_out_of_a_square_matrix_are_one_axis_each():
    spec = specs(OWN).blocks[0].attention.matrix
    assert (spec.fan_in, spec.fan_out) == (6, 6)


# --- layers that differ --------------------------------------------------------------------------------


PATTERN = BASE.replace(layers=4, pattern=(Block(), Block(attention=RunningMean(), feed_forward=Dense(d_ff=7))))


@pytest.mark.slow
def test_diagnostics_of_differing_layers_are_equal_in_both_layouts():
    run = run_of(PATTERN)
    batch, unrolled, scanned = batch_of(run), state_of(run), state_of(run, "scanned")
    assert isinstance(scanned.params.blocks, Periods)
    one, other = diagnose(unrolled, run, batch), diagnose(scanned, run, batch)
    assert one.attention.keys() == {"blocks/0/attention", "blocks/2/attention"}
    assert one.gradient_norm["blocks/3/attention/matrix"] > 0
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), one, other)
    rows = summary(one, coarse=True)
    entropies = [one.attention[f"blocks/{layer}/attention"].entropy for layer in (0, 2)]
    np.testing.assert_allclose(rows["attention_entropy/blocks/attention/min"], np.min(entropies))
    norms_of_blocks = [one.parameter_norm[f"blocks/{layer}"] for layer in range(4)]
    np.testing.assert_allclose(rows["parameter_norm/blocks/mean"], np.mean(norms_of_blocks), rtol=1e-6)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_first_non_finite_place_of_differing_layers_names_the_layer(layout):
    run = run_of(PATTERN)
    state, batch = state_of(run), batch_of(run)
    blocks = state.params.blocks
    attention = blocks[1].attention.replace(matrix=blocks[1].attention.matrix.at[0, 0].set(jnp.nan))
    blocks = (blocks[0], blocks[1].replace(attention=attention), *blocks[2:])
    bad = in_layout(state.replace(params=state.params.replace(blocks=blocks)), run, layout)
    assert first_nonfinite(bad, run, batch).place == "blocks/1/attention/update"


def test_coordinate_check_scales_every_block_of_a_pattern():
    wide = at_width(PATTERN, 12, "d_head")
    assert wide.pattern == (Block(), Block(attention=RunningMean(heads=4), feed_forward=Dense(d_ff=14)))
    assert wide.attention.heads == 4


def layers(dice):
    """Return intermediates of three blocks: with two heads, with three heads, and without attention."""
    x = lambda *shape: jnp.asarray(dice.normal(size=shape), jnp.float32)  # noqa: E731
    blocks = []
    for heads in (2, 3, None):
        scores = {}
        if heads is not None:
            logits = x(B, heads, T, S)
            scores = {"logits": logits, "weights": masked_softmax(logits, jnp.ones(logits.shape, bool))}
        blocks.append(BlockIntermediates(attention=BranchActivations(x(B, T, 6), x(B, T, 6), x(B, T, 6), scores)))
    return Intermediates(embedded=x(B, T, 6), blocks=tuple(blocks), final=x(B, T, 6))


@pytest.mark.slow
def test_differing_layers_have_own_places():
    kept = layers(np.random.default_rng(0))
    batch = Batch(inputs=kept.final, targets=kept.final, weights=jnp.ones(B))
    assert isinstance(stack_layers(kept).blocks, tuple)
    found = measure_activations(kept, batch, rms)
    assert found.keys() == {
        "embedded", "final", *(f"blocks/{i}/attention/{stage}" for i in range(3) for stage in ("update", "stream"))
    }  # fmt: skip
    np.testing.assert_allclose(
        found["blocks/2/attention/update"], np.sqrt(np.mean(np.square(kept.blocks[2].attention.update))), rtol=1e-6
    )
    assert split_layers(found).keys() == found.keys()
    statistics = attention_statistics(kept, batch)
    assert {place: own.entropy.shape for place, own in statistics.items()} == {
        "blocks/0/attention": (2,),
        "blocks/1/attention": (3,),
    }
    alone = attention_statistics(kept.replace(blocks=kept.blocks[1:2]), batch)["blocks/attention"]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y[0], rtol=1e-6), statistics["blocks/1/attention"], alone)


def test_weight_norms_of_differing_layers_are_per_layer():
    run = run_of(BASE)
    params = state_of(run).params
    other = state_of(run_of(BASE.replace(feed_forward=Dense(d_ff=7)))).params
    mixed = params.replace(blocks=(params.blocks[0], other.blocks[1]))
    found, one, two = norms_by_place(mixed), norms_by_place(params), norms_by_place(other)
    assert "blocks" not in found
    np.testing.assert_allclose(found["blocks/0"], one["blocks"][0], rtol=1e-6)
    np.testing.assert_allclose(found["blocks/1/feed_forward/up"], two["blocks/feed_forward/up"][1], rtol=1e-6)
    assert found["head"] == one["head"]


@pytest.mark.parametrize(
    ("place", "every", "layer", "without"),
    [
        ("blocks/attention", True, None, "blocks/attention"),
        ("blocks/3/attention", False, 3, "blocks/attention"),
        ("encoder/blocks/12", False, 12, "encoder/blocks"),
        ("encoder/blocks", True, None, "encoder/blocks"),
        ("embedding/layers", False, None, "embedding/layers"),
        ("head", False, None, "head"),
    ],
)
def test_places_are_parsed(place, every, layer, without):
    assert (is_in_every_layer(place), layer_index(place), without_layer(place)) == (every, layer, without)
