"""Search for the first non-finite place, forward and backward, in both layouts."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BASE, LENGTHS, MODELS, SOURCE_LENGTHS, case, in_layout

from flaxformer.components import LayerScale, LearnedPositions, NormPlacement, RelativeBuckets
from flaxformer.core.params import path_name
from flaxformer.diagnostics import first_nonfinite
from flaxformer.diagnostics.nonfinite import BACKWARD, in_computation_order
from flaxformer.diagnostics.nonfinite import FORWARD as FORWARD_PLACES
from flaxformer.model import specs

REAL, D = sum(LENGTHS), 6


@functools.cache
def healthy(name="encoder-decoder"):
    return case(name)


def with_weight(state, place, change):
    """Return the state with a change of the weight at a place, such as "blocks/1/attention/query"."""

    def at(tree, parts):
        if not parts:
            return change(tree)
        if isinstance(tree, tuple):
            layer = int(parts[0])
            return (*tree[:layer], at(tree[layer], parts[1:]), *tree[layer + 1 :])
        return tree.replace(**{parts[0]: at(getattr(tree, parts[0]), parts[1:])})

    return state.replace(params=at(state.params, place.split("/")))


def everywhere(number):
    return lambda x: jnp.full_like(x, number)


def one(number):
    """Return a function that sets the first entry."""
    return lambda x: x.at[(0,) * x.ndim].set(number)


def found(state, run, batch, layout="unrolled"):
    bad = first_nonfinite(in_layout(state, run, layout), run, batch)
    return bad and (bad.direction, bad.place, bad.bad, bad.of)


# Real pairs per head of a decoder's self-attention, and of its cross-attention.
PAIRS = sum(t + 1 for length in LENGTHS for t in range(length))
READ = sum(queries * keys for queries, keys in zip(LENGTHS, SOURCE_LENGTHS, strict=True))
# A non-finite entry of a weight reaches one feature of every real token, or all features.
FORWARD = {
    "blocks/1/feed_forward/down_bias": (one(jnp.nan), "blocks/1/feed_forward/update", REAL, REAL * D),
    "blocks/1/feed_forward/up": (one(jnp.inf), "blocks/1/feed_forward/update", None, REAL * D),
    "blocks/1/feed_forward_connection/pre/gain": (one(jnp.nan), "blocks/1/feed_forward/input", REAL, REAL * D),
    "blocks/0/attention/query": (one(jnp.nan), "blocks/0/attention/logits", PAIRS, 2 * PAIRS),
    "blocks/0/attention/value": (everywhere(-jnp.inf), "blocks/0/attention/update", REAL * D, REAL * D),
    "blocks/1/cross_attention/key": (everywhere(jnp.inf), "blocks/1/cross_attention/logits", 2 * READ, 2 * READ),
    "encoder/blocks/0/attention/out_bias": (
        one(jnp.nan), "encoder/blocks/0/attention/update", sum(SOURCE_LENGTHS), sum(SOURCE_LENGTHS) * 10
    ),
    "encoder/embedding/tokens": (everywhere(jnp.nan), "encoder/embedded", sum(SOURCE_LENGTHS) * 10, None),
    "embedding/tokens": (everywhere(jnp.nan), "embedded", REAL * D, REAL * D),
    "final_norm/gain": (one(jnp.inf), "final", REAL, REAL * D),
    "head/matrix": (one(jnp.nan), "output", REAL, REAL * 13),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.every(6)
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
@pytest.mark.parametrize("place", FORWARD)
def test_first_activation_after_a_non_finite_weight_is_found(place, layout):
    run, state, batch = healthy()
    change, first, bad, of = FORWARD[place]
    direction, name, count, total = found(with_weight(state, place, change), run, batch, layout)
    assert (direction, name) == ("forward", first)
    assert bad in (None, count)
    assert of in (None, total)
    assert 0 < count <= total


def test_overflowing_logits_are_found_before_attention_weights():
    """Queries and keys are finite, but not their product."""
    run, state, batch = healthy()
    for weight in ("query", "key"):
        state = with_weight(state, f"blocks/1/attention/{weight}", lambda x: x * 1e25)
    assert found(state, run, batch)[:2] == ("forward", "blocks/1/attention/logits")


def test_overflowing_loss_is_found():
    run, state, batch = healthy()
    state = with_weight(state, "head/matrix", lambda x: jnp.sign(x) * 3e37)
    assert found(state, run, batch) == ("forward", "loss", 1, 1)


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_finite_run_gives_none(layout):
    run, state, batch = healthy()
    assert found(state, run, batch, layout) is None


def test_recurrent_layer_is_found():
    run, state, batch = healthy("recurrent")
    first, second = state.params.blocks
    second = jax.tree.map(everywhere(jnp.nan), second)
    state = state.replace(params=state.params.replace(blocks=(first, second)))
    bad = first_nonfinite(state, run, batch)
    assert (bad.place, bad.bad, bad.of) == ("blocks/1/attention/update", REAL * D, REAL * D)


def test_nan_in_padding_does_not_count():
    """NaN in the embedding of a padding token reaches no real entry, forward or backward."""
    run, state, batch = healthy()
    unseen = batch.replace(inputs=jnp.where(batch.valid, batch.inputs % 12, 12))
    state = with_weight(state, "embedding/tokens", lambda x: x.at[12].set(jnp.nan))
    assert found(state, run, unseen) is None


@pytest.mark.every(4)
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
@pytest.mark.parametrize(
    ("branch", "inner", "outer"), [("feed_forward", ["up", "up_bias"], "down"), ("attention", ["value"], "out")]
)
def test_overflowing_gradient_is_found_although_the_loss_is_finite(branch, inner, outer, layout):
    """The head's gradient is near 1e24. A branch that divides by 1e30 and multiplies by it has the same output, but the
    gradient of its first matrix overflows float32."""
    run, state, batch = healthy()
    state = with_weight(state, "head/matrix", lambda x: x * 1e24)
    assert found(state, run, batch, layout) is None
    for layer in (0, 1):
        for name in inner:
            state = with_weight(state, f"blocks/{layer}/{branch}/{name}", lambda x: x * 1e-30)
        state = with_weight(state, f"blocks/{layer}/{branch}/{outer}", lambda x: x * 1e30)
        assert found(state, run, batch, layout)[:2] == ("backward", f"blocks/{layer}/{branch}")


def test_gradient_of_the_embedding_is_last():
    """x = E · D^e with a tiny E: only the gradient of E overflows float32."""
    run, state, batch = healthy()
    state = with_weight(state, "head/matrix", lambda x: x * 1e20)
    exponent = 25 / np.log10(D)
    run = run.replace(model=run.model.replace(inputs=run.model.inputs.replace(scale_exponent=exponent)))
    state = with_weight(state, "embedding/tokens", lambda x: x * 1e-25)
    assert found(state, run, batch)[:2] == ("backward", "embedding")


EVERYTHING = NormPlacement(pre=True, post_branch=True, post_residual=True, embedding=True, final=True)


@pytest.mark.parametrize(
    "model",
    [
        *MODELS.values(),
        BASE.replace(norm=EVERYTHING, residual=LayerScale(), positions=RelativeBuckets()).with_encoder(layers=1),
        BASE.replace(positions=LearnedPositions(max_length=7)),
    ],
)
def test_order_of_gradients_has_every_weight(model):
    paths = [re.sub(r"/\d+", "", path_name(path)) for path, _ in jax.tree_util.tree_leaves_with_path(specs(model))]
    assert [path for path in paths if not any(path.startswith(f"{place}/") for place in BACKWARD)] == []


def test_layers_with_own_places_are_in_order():
    counts = {f"blocks/{i}/{branch}/update": i for i in (0, 2, 10) for branch in ("feed_forward", "attention")}
    places = [place for place, _ in in_computation_order(counts | {"embedded": 0, "output": 0}, FORWARD_PLACES, 1)]
    assert places == [
        "embedded",
        *(f"blocks/{i}/{branch}/update" for i in (0, 2, 10) for branch in ("attention", "feed_forward")),
        "output",
    ]


def test_text_has_direction_place_and_counts():
    run, state, batch = healthy()
    bad = first_nonfinite(with_weight(state, "head/matrix", one(jnp.nan)), run, batch)
    assert str(bad) == f"first non-finite in the forward pass: output, {REAL} of {REAL * 13} numbers"
