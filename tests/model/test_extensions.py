"""What a component may read and change: tokens, heads before W_O, wide keys; against float64 numpy, and in decoding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from model.padded_tokens import (
    REAL,
    TOKENS,
    VALID,
    check_decoding,
    model,
    weights_of,
)

from flaxformer.components import GRU, Attention, Context, Dense, Elman, FeedForward, Rotary, TokenMixer, Vectors
from flaxformer.components.cache import KeysValues
from flaxformer.core.params import Parameters, param
from flaxformer.model import apply, apply_with_intermediates, init
from flaxformer.nn.linear import linear
from flaxformer.nn.positions import rotate
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import Run, Training

pytestmark = pytest.mark.usefixtures("broadcasting_as_in_a_users_program")


def branch(config, params, name="attention", **given):
    """Input and output of a branch of the last layer, and the weights of the branch, in float64."""
    _, found = apply_with_intermediates(params, config, TOKENS, valid=VALID, **given)
    own = getattr(found.blocks[-1], name)
    weights = jax.tree.map(lambda x: np.asarray(x, np.float64), getattr(params.blocks[-1], name))
    return np.asarray(own.input, np.float64), np.asarray(own.output, np.float64), weights


class PerToken(FeedForward):
    """y_t = U[token_t], a second embedding in each layer."""

    class Weights(Parameters):
        table: Float[Array, "vocabulary d_model"] = param(std=0.5, decay=False)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Array:
        assert context.tokens is not None
        return weights.table[context.tokens].astype(x.dtype)


class MeanOfTokens(TokenMixer):
    """y_t = mean of U[token_s] over the tokens s that t may read; without a decoding state."""

    class Weights(Parameters):
        table: Float[Array, "vocabulary d_model"] = param(std=0.5, decay=False)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Array:
        allowed = context.mask.matrix(x.shape[-2], x.shape[-2])
        allowed = allowed[..., 0, :, :] if allowed.ndim > 2 else allowed
        share = allowed / jnp.maximum(allowed.sum(-1, keepdims=True), 1)
        return (share @ weights.table[context.tokens]).astype(x.dtype)


@pytest.mark.long
def test_a_feed_forward_reads_the_token_ids():
    config = model(layers=2, feed_forward=PerToken())
    params = weights_of(config)
    _, y, weights = branch(config, params, "feed_forward")
    np.testing.assert_allclose(y[REAL], weights.table[np.asarray(TOKENS)][REAL], atol=1e-6)
    check_decoding(config, params, ["scanned"], beams=True)


def test_a_mixer_without_a_state_reads_the_token_ids():
    config = model(attention=MeanOfTokens(), feed_forward=None)
    params = weights_of(config)
    _, y, weights = branch(config, params)
    rows = weights.table[np.asarray(TOKENS)]
    for row in range(2):
        for t in np.flatnonzero(REAL[row]):
            before = [s for s in range(t + 1) if REAL[row, s]]
            np.testing.assert_allclose(y[row, t], rows[row, before].mean(0), atol=1e-6)
    check_decoding(config, params, beams=True)


@pytest.mark.slow
def test_the_encoder_reads_the_tokens_of_the_source():
    config = model(feed_forward=PerToken()).with_encoder(vocabulary=5)
    params = weights_of(config)
    source = jnp.asarray([[1, 2, 4], [0, 3, 3]])
    _, found = apply_with_intermediates(params, config, TOKENS, source=source)
    expected = params.encoder.blocks[0].feed_forward.table[source]
    np.testing.assert_allclose(found.encoder.blocks[0].feed_forward.output, expected, atol=1e-6)
    check_decoding(config, params, source=source)


@pytest.mark.long
def test_inputs_that_are_no_tokens_have_no_ids():
    seen = []

    class Look(Dense):
        def apply(self, weights, x, context):
            seen.append(context.tokens)
            return super().apply(weights, x, context)

    config = model(inputs=Vectors(width=3), feed_forward=Look(d_ff=4))
    apply(init(jax.random.key(0), config), config, jnp.ones((2, 4, 3)))
    assert seen == [None]


def numpy_attention(x, w, bias=None, positions=None):
    """Values mixed by causal softmax attention without padding, [T, N, d_v], for one sequence; row by row."""
    query = np.einsum("td,dnh->tnh", x, w.query) + w.query_bias
    key = np.einsum("td,dnh->tnh", x, w.key) + w.key_bias
    value = np.einsum("td,dnh->tnh", x, w.value) + w.value_bias
    if positions is not None:
        with jax.enable_x64(True):
            query, key = (np.asarray(rotate(jnp.asarray(one), jnp.asarray(positions))) for one in (query, key))
    mixed = np.zeros((*value.shape[:1], *query.shape[1:2], value.shape[-1]))
    for head in range(query.shape[1]):
        own = head * key.shape[1] // query.shape[1]
        for t in range(len(x)):
            z = key[: t + 1, own] @ query[t, head] / np.sqrt(query.shape[-1])
            z = z if bias is None else z + bias(own, t)
            a = np.exp(z - z.max())
            mixed[t, head] = (a / a.sum()) @ value[: t + 1, own]
    return mixed


class Gate(Attention):
    """Heads ⊙ σ(x G), before W_O (Qiu et al. 2025)."""

    class Weights(Attention.Weights):
        gate: Float[Array, "d_model heads d_value"] = param(fan_in="d_model")

    def transform_heads(self, weights: Any, heads: Array, x: Array, context: Context) -> Array:
        return heads * jax.nn.sigmoid(linear(x, weights.gate, wide=True)).astype(heads.dtype)


class Subtract(Attention):
    """Head 2i minus λ_t times head 2i + 1, with λ_t = σ(x_t w), mapped by a W_O of half the height."""

    class Weights(Attention.Weights):
        mix: Float[Array, "d_model pairs"] = param(fan_in="d_model")
        out: Float[Array, "pairs d_value d_model"] | None = param(fan_in="pairs d_value", init="branch", when="has_out")

    def sizes(self, model: Any) -> dict[str, int]:
        return {"pairs": self.heads // 2}

    def transform_heads(self, weights: Any, heads: Array, x: Array, context: Context) -> Array:
        share = jax.nn.sigmoid(linear(x, weights.mix, wide=True))[..., None]
        return (heads[..., 0::2, :] - share * heads[..., 1::2, :]).astype(heads.dtype)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


TRANSFORMS = {
    Gate: lambda y, x, w: y * sigmoid(np.einsum("td,dnh->tnh", x, w.gate)),
    Subtract: lambda y, x, w: y[:, 0::2] - sigmoid(x @ w.mix)[..., None] * y[:, 1::2],
}


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("changes", [{}, {"key_value_heads": 1, "window": None}])
def test_a_step_between_the_heads_and_the_output_matrix(kind, changes):
    config = model(attention=kind(heads=4, **changes))
    params = weights_of(config)
    x, y, w = branch(config, params)
    fused = apply(params, config, TOKENS, valid=VALID)
    steps, _ = apply_with_intermediates(params, config, TOKENS, valid=VALID)
    np.testing.assert_allclose(fused[REAL], steps[REAL], atol=1e-5)
    for row in range(2):
        own = x[row][REAL[row]]
        heads = TRANSFORMS[kind](numpy_attention(own, w), own, w)
        expected = np.einsum("tnh,nhd->td", heads, w.out) + w.out_bias
        np.testing.assert_allclose(y[row][REAL[row]], expected, atol=1e-5)
    check_decoding(config, params)


@pytest.mark.long
def test_a_step_after_the_heads_of_cross_attention():
    config = model(attention=Gate(heads=2)).with_encoder()
    params = weights_of(config)
    source = jnp.asarray([[1, 2, 4], [0, 3, 3]])
    plain = config.replace(attention=Attention(heads=2), cross_attention=Attention(heads=2))
    assert not np.allclose(apply(params, config, TOKENS, source=source), apply(params, plain, TOKENS, source=source))
    check_decoding(config, params, source=source)


class Forgetting(Attention):
    """Logits plus Σ_{s < r ≤ t} log σ(x_r f), each kept as a further entry of the key (Lin et al. 2025)."""

    class Weights(Attention.Weights):
        forget: Float[Array, "d_source key_value_heads"] = param(fan_in="d_source")

    def cache_widths(self, weights: Any) -> tuple[int, int]:
        d_key, d_value = super().cache_widths(weights)
        return d_key + 1, d_value

    def keys_and_values(self, weights: Any, source: Array, context: Context) -> KeysValues:
        own = super().keys_and_values(weights, source, context)
        log_forget = jax.nn.log_sigmoid(linear(source, weights.forget, wide=True))[..., None]
        return own.replace(key=jnp.concatenate([own.key, log_forget.astype(own.key.dtype)], -1))

    def logits(self, weights: Any, query: Array, key: Array, mask: Any, bias: Any, scale: Any) -> Array:
        key, log_forget = key[..., :-1], jnp.moveaxis(key[..., -1], -1, -2)  # [*batch, K, S]
        logits = super().logits(weights, query, key, mask, bias, scale)
        total = jnp.repeat(jnp.cumsum(log_forget, -1), self.heads // log_forget.shape[-2], axis=-2)[..., None, :]
        allowed = mask.matrix(*logits.shape[-2:])
        last = jnp.where(allowed, total, jnp.inf).min(-1, keepdims=True)  # sums of negative numbers fall
        return logits + jnp.where(allowed, last - total, 0)


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize("key_value_heads", [None, 1])
def test_keys_that_are_wider_than_a_head(key_value_heads):
    config = model(attention=Forgetting(heads=2, key_value_heads=key_value_heads), positions=Rotary())
    params = weights_of(config)
    x, y, w = branch(config, params)
    for row in range(2):
        own = x[row][REAL[row]]
        forget = np.log(sigmoid(own @ w.forget))

        def bias(head, t, forget=forget):
            return np.array([forget[s + 1 : t + 1, head].sum() for s in range(t + 1)])

        mixed = numpy_attention(own, w, bias, np.arange(len(own)))
        expected = np.einsum("tnh,nhd->td", mixed, w.out) + w.out_bias
        np.testing.assert_allclose(y[row][REAL[row]], expected, atol=1e-5)
    check_decoding(config, params)


ORDERS = {
    "beside it": lambda cell: model(attention=cell, cross_attention=Attention(heads=2)).with_encoder(
        attention=Attention(heads=2)
    ),
    "the encoder's by default": lambda cell: model(attention=cell, cross_attention=Attention(heads=2)).with_encoder(),
    "after the encoder": lambda cell: (
        model(attention=Attention(heads=2)).with_encoder().replace(attention=cell, cross_attention=Attention(heads=2))
    ),
    "replaced twice": lambda cell: (
        model(attention=cell).replace(cross_attention=Attention(heads=2)).with_encoder(attention=Attention(heads=2))
    ),
    "all at once": lambda cell: model(
        attention=cell,
        cross_attention=Attention(heads=2),
        encoder=model(attention=Attention(heads=2)).with_encoder().encoder,
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("cell", [GRU(), MeanOfTokens()], ids=["state", "recomputed"])
def test_a_decoder_that_mixes_by_something_else(cell):
    configs = [make(cell) for name, make in ORDERS.items() if cell.reads_mask is False or "default" not in name]
    assert all(config == configs[0] for config in configs)
    config = configs[0]
    assert (type(config.attention), type(config.cross)) == (type(cell), Attention)
    params = weights_of(config)
    source, source_valid = jnp.asarray([[1, 2, 4], [0, 3, 3]]), jnp.asarray([[True] * 3, [True, True, False]])
    check_decoding(config, params, source=source, source_valid=source_valid)


def test_messages_of_a_decoder_that_mixes_by_something_else():
    with pytest.raises(UserError, match=r"cross_attention is None with attention Elman, .* cross_attention=Attention"):
        model(attention=Elman(), d_memory=3)
    unused = model(cross_attention=Attention(heads=2))
    expected = r"cross_attention is given without an encoder; expected \.with_encoder\(\.\.\.\), d_memory, or None"
    with pytest.raises(UserError, match=expected):
        init(jax.random.key(0), unused)
    with pytest.raises(UserError, match=f"model.{expected}"):
        Run(model=unused.replace(vocabulary=4), task=Copy(symbols=3, length=3), training=Training(steps=1))
    encoder = model(attention=Attention(heads=2), cross_attention=Attention(heads=2)).with_encoder()
    with pytest.raises(UserError, match='the task has no source with form "joined"; form="paired" has one'):
        Run(model=encoder.replace(vocabulary=4), task=Copy(symbols=3, length=3), training=Training(steps=1))
