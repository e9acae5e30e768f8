"""Feed-forward networks that read other tokens, and keys and values that layers share, in full passes and decoding."""

import itertools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jaxtyping import Array, Float
from model.padded_tokens import (
    REAL,
    TOKENS,
    VALID,
    D,
    V,
    check_decoding,
    model,
    weights_of,
)

from flaxformer.components import Attention, Context, Dense, FeedForward, Rotary
from flaxformer.components.cache import KeysValues, write
from flaxformer.components.component import Aux
from flaxformer.config import Block
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import static
from flaxformer.model import apply, apply_with_intermediates, init, new_cache
from flaxformer.model.beam import beam_search
from flaxformer.nn.linear import linear
from flaxformer.system.errors import UserError

pytestmark = pytest.mark.usefixtures("broadcasting_as_in_a_users_program")
LAYOUTS = ("unrolled", "scanned")


class Convolved(Dense):
    """Dense network of Σ_k w_k ⊙ x_{t−k} over the last `taps` real tokens."""

    reads_others: ClassVar[bool] = True
    reads_mask: ClassVar[bool] = False
    taps: int = static(3, at_least=1)

    class Weights(Dense.Weights):
        filter: Float[Array, "taps d_model"] = param(std=0.5, decay=False)

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> Array:
        return jnp.zeros((*batch, self.taps, weights.filter.shape[-1]), dtype)

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Array:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights: Any, x: Array, state: Array, context: Context) -> tuple[Array, Array]:
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid

        def token(last: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
            x_t, real = inputs
            new = jnp.concatenate([x_t[..., None, :], last[..., :-1, :]], -2).astype(last.dtype)
            last = jnp.where(real[..., None, None], new, last)
            return last, (last * weights.filter).sum(-2)

        state, mixed = jax.lax.scan(token, state, (jnp.moveaxis(x, -2, 0), jnp.moveaxis(valid, -1, 0)))
        return Dense.apply(self, weights, jnp.moveaxis(mixed, 0, -2).astype(x.dtype), context), state


class MeanNetwork(FeedForward):
    """W · mean of the tokens that t may read; recomputed in decoding."""

    reads_others: ClassVar[bool] = True

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Array:
        allowed = context.mask.matrix(x.shape[-2], x.shape[-2])
        allowed = allowed[..., 0, :, :] if allowed.ndim > 2 else allowed
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        return linear(allowed / jnp.maximum(allowed.sum(-1, keepdims=True), 1) @ x, weights.out)


def expected_update(kind, x, w):
    """The update of one sequence without padding, in float64."""
    if kind is MeanNetwork:
        return np.array([x[: t + 1].mean(0) for t in range(len(x))]) @ w.out
    mixed = np.array([sum(w.filter[k] * x[t - k] for k in range(min(3, t + 1))) for t in range(len(x))])
    return np.maximum(mixed @ w.up + w.up_bias, 0) @ w.down + w.down_bias


@pytest.mark.long
@pytest.mark.parametrize("kind", [Convolved, MeanNetwork])
def test_a_feed_forward_that_reads_other_tokens(kind):
    config = model(layers=2, feed_forward=Convolved(d_ff=6) if kind is Convolved else MeanNetwork())
    params = weights_of(config)
    _, found = apply_with_intermediates(params, config, TOKENS, valid=VALID)
    own = found.blocks[-1].feed_forward
    w = jax.tree.map(lambda x: np.asarray(x, np.float64), params.blocks[-1].feed_forward)
    for row in range(2):
        x = np.asarray(own.input[row], np.float64)[REAL[row]]
        np.testing.assert_allclose(np.asarray(own.output[row])[REAL[row]], expected_update(kind, x, w), atol=1e-5)
    check_decoding(config, params, LAYOUTS)


def test_declarations_of_a_feed_forward_that_reads_other_tokens():
    assert list(model(feed_forward=Convolved()).mixers_without_mask) == ["feed_forward"]
    assert list(model(feed_forward=MeanNetwork()).mixers_without_state) == ["feed_forward"]
    assert list(model().mixers) == ["attention"]
    with pytest.raises(UserError, match='expected "causal" with feed_forward Convolved, which reads no mask'):
        model(feed_forward=Convolved(), mask_pattern="bidirectional")
    assert new_cache(weights_of(model()), model(), (1,), 3).layers[0].feed_forward is None


class Borrowing(Attention):
    """Attention whose keys and values are those of the first of each `every` layers (Brandon et al. 2024)."""

    every: int = static(2, at_least=1)
    owner: bool = static(True)

    class Weights(Attention.Weights):
        value: Float[Array, "d_source key_value_heads d_value"] | None = param(
            fan_in="d_source", init="branch", when="owner"
        )
        value_bias: Float[Array, "key_value_heads d_value"] | None = param(init="zeros", decay=False, when="owner")

    has_key = property(lambda self: self.owner)

    def shared_state(self, sizes: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> dict[str, Any]:
        own, groups = self.axis_sizes(sizes), sizes["layers"] // self.every
        shape = (*batch, groups, capacity, own["key_value_heads"])
        key, value = (jnp.zeros((*shape, own[width]), dtype) for width in ("d_head", "d_value"))
        return {"memory": KeysValues(key, value)}

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> tuple[()]:
        return ()

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> tuple[Array, Aux]:
        memory, group = context.carried["memory"], context.layer // self.every
        own = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, group, x.ndim - 4, False), memory)
        if self.owner:
            new = self.keys_and_values(weights, x, context)
            if context.valid is not None:  # NaN of padding must not stay in the cache
                new = jax.tree.map(lambda leaf: jnp.where(context.valid[..., None, None], leaf, 0), new)
            start = 0 if context.offset is None else context.offset
            own = jax.tree.map(lambda old, leaf: write(old, leaf, start, axis=-3), own, new)
            memory = jax.tree.map(
                lambda x, leaf: jax.lax.dynamic_update_index_in_dim(x, leaf, group, x.ndim - 4), memory, own
            )
        y, aux = self.read(weights, x, own, context)
        return y, aux.merge(Aux(carried={"memory": memory}))

    def step(self, weights: Any, x: Array, state: tuple[()], context: Context) -> tuple[Any, tuple[()]]:
        return self.apply(weights, x, context), state


def borrower(every, owner=False):
    return Block(attention=Borrowing(heads=2, key_value_heads=1, every=every, owner=owner))


PATTERNS = {2: (borrower(2, True), borrower(2)), 4: (borrower(4, True), *[borrower(4)] * 3)}


@pytest.mark.long
@pytest.mark.parametrize("every", PATTERNS)
def test_layers_that_share_a_cache(every):
    config = model(layers=4, positions=Rotary(), pattern=PATTERNS[every])
    params = weights_of(config)
    assert params.blocks[1].attention.value is None
    assert params.blocks[1].attention.key is None
    check_decoding(config, params, LAYOUTS if every == 2 else LAYOUTS[:1])
    cache = new_cache(params, config, (2,), 16)
    numbers = sum(x.size for x in jax.tree.leaves((cache.layers, cache.shared)))
    assert numbers == 4 // every * 2 * 2 * 16 * (D // 2)  # keys and values of one head, in each owner alone
    _, found = apply_with_intermediates(params, config, TOKENS[:1])
    one, owner = found.blocks[1].attention, params.blocks[0].attention
    w = jax.tree.map(lambda x: np.asarray(x, np.float64), params.blocks[1].attention)
    values = np.asarray(found.blocks[0].attention.input[0] @ owner.value[:, 0] + owner.value_bias[0], np.float64)
    mixed = np.stack([np.asarray(one.weights[0, head], np.float64) @ values for head in range(2)], 1)
    np.testing.assert_allclose(one.output[0], np.einsum("tnh,nhd->td", mixed, w.out) + w.out_bias, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("every", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_beams_of_layers_that_share_a_cache(every):
    config = model(layers=4, positions=Rotary(), pattern=PATTERNS[every])
    params = weights_of(config)
    found = beam_search(params, config, TOKENS, steps=2, beams=V, valid=VALID, length_penalty=0.0)
    ends = np.array(list(itertools.product(range(V), repeat=2)))
    for row in range(2):
        whole = jnp.concatenate([jnp.tile(TOKENS[row][REAL[row]], (V * V, 1)), jnp.asarray(ends)], -1)
        logits = np.asarray(jax.jit(apply)(params, config, whole), np.float64)[:, -3:-1]
        chances = scipy.special.log_softmax(logits, -1)
        totals = np.take_along_axis(chances, ends[..., None], -1)[..., 0].sum(-1)
        best = np.argsort(-totals)[:V]  # with as many hypotheses as tokens, none of the best is left out
        np.testing.assert_allclose(found.scores[row], totals[best], atol=1e-4)
        assert found.tokens[row].tolist() == ends[best].tolist()


def test_a_shared_state_needs_a_step():
    class Careless(Borrowing):
        def apply(self, weights, x, context):
            return super().apply(weights, x, context)

    config = model(attention=Careless(heads=2))
    params = init(jax.random.key(0), config)
    with pytest.raises(ValueError, match="Careless carries values across layers and has no decoding state"):
        new_cache(params, config, (2,), 4)
