"""User-defined components of every kind, in models, decoding, training, the command line and checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from flaxformer.checkpoint import read_config, write_config
from flaxformer.components import (
    Attention,
    Dense,
    FeedForward,
    Initializer,
    Norm,
    NormPlacement,
    Positions,
    Residual,
    RMSNorm,
    TokenMixer,
)
from flaxformer.components.component import Aux
from flaxformer.config import Block, ModelConfig
from flaxformer.core.canonical import canonical
from flaxformer.core.overrides import override
from flaxformer.core.params import Parameters, param, table
from flaxformer.core.paths import replace_at
from flaxformer.core.struct import choices, leaf, static
from flaxformer.model import apply, apply_with_intermediates, extend, generate, init, new_cache, specs
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import LossTerm, Run, Schedule, Training, ZLoss, start, train_step
from flaxformer.training.loss import loss, summed_loss
from flaxformer.training.step import backward

V, D, T = 11, 12, 7


class Mixture(FeedForward):
    """Pair of experts with soft gates, a loss and a statistic."""

    experts: int = static(3)
    balance: float | None = leaf(0.5)

    class Weights(Parameters):
        router: Float[Array, "d_model experts"] = param(fan_in="d_model")
        up: Float[Array, "experts d_model d_ff"] = param(fan_in="d_model")
        down: Float[Array, "experts d_ff d_model"] = param(fan_in="d_ff")

    def sizes(self, model):
        return super().sizes(model) | {"d_ff": 5}

    def apply(self, weights, x, context):
        share = jax.nn.softmax(x @ weights.router)
        hidden = jax.nn.relu(jnp.einsum("...d,edf->...ef", x, weights.up))
        y = jnp.einsum("...ef,efd,...e->...d", hidden, weights.down, share)
        load = share.reshape(-1, self.experts).mean(0)
        losses = {} if self.balance is None else {"balance": self.balance * jnp.square(load).sum()}
        return y, Aux(losses=losses, statistics={"load": load})


class Mean(TokenMixer):
    """Running mean of the tokens so far, without a decoding state."""

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        allowed = context.mask.matrix(x.shape[-2], x.shape[-2]).astype(x.dtype)
        allowed = allowed.reshape((1,) * (x.ndim - allowed.ndim) + allowed.shape) if allowed.ndim < x.ndim else allowed
        allowed = allowed[..., 0, :, :] if allowed.ndim > x.ndim else allowed
        seen = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        return allowed @ seen / jnp.maximum(allowed.sum(-1, keepdims=True), 1) @ weights.out


class Decayed(Mean):
    """Decaying sum of the tokens so far, with a decoding state of one vector."""

    rate: float = leaf(0.5)

    def apply(self, weights, x, context):
        return self.step(weights, x, jnp.zeros((*x.shape[:-2], x.shape[-1]), x.dtype), context)[0]

    def init_state(self, weights, batch, capacity, dtype):
        return jnp.zeros((*batch, D), dtype)

    def step(self, weights, x, state, context):
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid

        def one(state, now):
            token, real = now
            state = jnp.where(real[..., None], self.rate * state + jnp.where(real[..., None], token, 0), state)
            return state, state

        state, seen = jax.lax.scan(one, state, (jnp.moveaxis(x, -2, 0), jnp.moveaxis(valid, -1, 0)))
        return jnp.moveaxis(seen, 0, -2) @ weights.out, state


class Sigmoid(Attention):
    """Attention whose weights do not sum to one."""

    def normalize(self, weights, logits, mask):
        return jnp.where(mask, jax.nn.sigmoid(logits), 0)


class Tanh(Norm):
    """tanh(a x) in place of a norm."""

    initial: float = leaf(0.5)

    class Weights(Parameters):
        slope: Float[Array, ""] = param(value="initial", decay=False)

    def apply(self, weights, x, context):
        return jnp.tanh(weights.slope * x)


class Halved(Residual):
    """½ x + f(x)."""

    def join(self, weights, stream, update, context):
        return 0.5 * stream + update


class Two(Residual):
    """Two residual streams; a branch reads their mean."""

    class Weights(Parameters):
        share: Float[Array, "streams"] = param(init="ones", decay=False)

    streams: int = static(2)

    def begin(self, x, layers):
        return jnp.stack([x] * self.streams, axis=-2)

    def read(self, weights, stream, context):
        return jnp.einsum("s,...sd->...d", weights.share, stream) / self.streams

    def join(self, weights, stream, update, context):
        return stream + jnp.einsum("s,...d->...sd", weights.share, update)

    def end(self, stream):
        return stream.mean(-2)


class Distance(Positions):
    """Bias that depends on the query."""

    class Weights(Parameters):
        slope: Float[Array, "d_head"] = param(std=0.3, decay=False)

    def query_bias(self, weights, query, key, query_positions, key_positions, allowed):
        far = (query_positions[..., :, None] - key_positions[..., None, :]).astype(query.dtype)
        strength = jnp.moveaxis(query @ weights.slope, -1, -2)[..., None]
        far = far[..., None, :, :]
        return -strength * far.reshape((1,) * (strength.ndim - far.ndim) + far.shape)


class First(Attention):
    """Attention with the average of its values and those of the first layer."""

    def initial_carry(self, x):
        heads = self.heads
        return {"value": jnp.zeros((*x.shape[:-1], heads, D // heads), x.dtype)}

    def keys_and_values(self, weights, source, context):
        read = super().keys_and_values(weights, source, context)
        is_coordinator = jnp.asarray(context.layer == 0)
        return read.replace(value=jnp.where(is_coordinator, read.value, (read.value + context.carried["value"]) / 2))

    def apply(self, weights, x, context):
        y, aux = super().apply(weights, x, context)
        return y, aux.replace(carried=self._kept(weights, x, context))

    def step(self, weights, x, state, context):
        (y, aux), state = super().step(weights, x, state, context)
        return (y, aux.replace(carried=self._kept(weights, x, context))), state

    def _kept(self, weights, x, context):
        own = Attention.keys_and_values(self, weights, x, context).value
        return {"value": jnp.where(jnp.asarray(context.layer == 0), own, context.carried["value"])}


class Wide(Initializer):
    def std(self, spec):
        return 0.3


class Halving(Schedule):
    def fraction(self, progress, ratio):
        return 0.5**progress


class Small(LossTerm):
    def value(self, params, outcome, batch):
        return jnp.square(outcome.output).mean(-1).sum(), jnp.float32(outcome.output[..., 0].size)


BASE = ModelConfig(vocabulary=V, layers=3, d_model=D, attention=Attention(heads=3), feed_forward=Dense(d_ff=10))
OWN = {
    "feed-forward": {"feed_forward": Mixture()},
    "mixer by recomputation": {"attention": Mean()},
    "mixer with a state": {"attention": Decayed()},
    "normaliser": {"attention": Sigmoid(heads=3)},
    "norm": {"norm_kind": Tanh()},
    "norm in one place": {"norm": NormPlacement(pre=RMSNorm(), post_branch=Tanh(), final=True)},
    "residual": {"residual": Halved()},
    "residual streams": {"residual": Two()},
    "positions that see the query": {"positions": Distance()},
    "carried values": {"attention": First(heads=3)},
    "initializer": {"initializer": Wide()},
    "pattern": {"layers": 4, "pattern": (Block(attention=Mean()), Block(feed_forward=Mixture()))},
    "shared weights": {"layers": 4, "distinct_blocks": 2, "feed_forward": Mixture()},
}
QUICK = {"mixer by recomputation", "mixer with a state", "residual streams", "shared weights"}
"""Components that the longest test covers by default."""


def model_of(name):
    return BASE.replace(**OWN[name])


@pytest.mark.every(4)
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OWN])
def test_decoding_equals_the_forward_pass_in_both_layouts(name):
    config = model_of(name)
    params = init(jax.random.key(0), config)
    tokens = jax.random.randint(jax.random.key(1), (2, T), 0, V)
    expected = jax.jit(apply)(params, config, tokens)
    scanned = with_layout(params, "scanned")
    np.testing.assert_allclose(jax.jit(apply)(scanned, config, tokens), expected, atol=2e-5)
    for weights in (params, scanned):
        cache, said = new_cache(weights, config, (2,), T), []
        first, cache = jax.jit(extend)(weights, config, tokens[:, :3], cache)
        said.append(first)
        for t in range(3, T):
            one, cache = jax.jit(extend)(weights, config, tokens[:, t : t + 1], cache)
            said.append(one)
        np.testing.assert_allclose(jnp.concatenate(said, 1), expected, atol=3e-5)
    assert generate(params, config, tokens[:, :2], steps=3).tokens.shape == (2, 3)


@pytest.mark.every(2, "long")
@pytest.mark.every(5)
@pytest.mark.parametrize("name", OWN)
def test_later_tokens_and_padding_do_not_change_earlier_outputs(name):
    config = model_of(name)
    params = init(jax.random.key(0), config)
    tokens = jax.random.randint(jax.random.key(1), (2, T), 0, V)
    valid = jnp.arange(T)[None] < jnp.array([[T], [4]])
    expected = jax.jit(apply)(params, config, tokens, valid=valid)
    other = jax.jit(apply)(params, config, jnp.where(valid, tokens, 3).at[:, -1].set(5), valid=valid)
    np.testing.assert_allclose(other[0, :-1], expected[0, :-1], atol=1e-6)
    np.testing.assert_allclose(other[1, :4], expected[1, :4], atol=1e-6)


def test_overridden_attention_is_used_by_every_kernel_path():
    own, plain = model_of("normaliser"), BASE
    params = init(jax.random.key(0), own)
    tokens = jnp.arange(T)[None]
    assert not np.allclose(apply(params, own, tokens), apply(params, plain, tokens), atol=1e-3)
    _, kept = apply_with_intermediates(params, own, tokens)
    weights = kept.blocks[0].attention.weights
    assert not np.allclose(weights.sum(-1), 1, atol=1e-3)
    assert not Sigmoid().is_plain
    assert Attention().is_plain


@pytest.mark.slow
def test_component_losses_are_added_in_training_only():
    task = Copy(symbols=V - 1, length=3, batch_size=4, evaluation_batches=2)
    config = model_of("feed-forward")
    with_loss = Run(model=config, task=task, training=Training(steps=2))
    without = replace_at(with_loss, {"model.feed_forward.balance": None})
    state, batch = start(with_loss), task.load().batch(jax.random.key(0), 0)
    value, outcome = loss(state.params, with_loss, batch, None)
    plain, _ = loss(state.params, without, batch, None)
    added = sum(outcome.aux.losses.values())
    np.testing.assert_allclose(value, plain + added, rtol=1e-6)
    assert list(outcome.aux.losses) == ["blocks/feed_forward/balance"]
    assert outcome.aux.statistics["blocks/feed_forward/load"].shape == (3, 3)
    moved, _ = train_step(state, with_loss, batch)
    same, _ = train_step(state, without, batch)
    router = [one.params.blocks[0].feed_forward.router for one in (moved, same)]
    assert not np.allclose(*router, atol=1e-7)


@pytest.mark.slow
def test_loss_terms_do_not_depend_on_micro_batches():
    task = Copy(symbols=V - 1, length=3, batch_size=4, evaluation_batches=2)
    run = Run(
        model=BASE, task=task, training=Training(steps=2, micro_batches=1), loss_terms=(ZLoss(weight=0.1), Small())
    )
    state, batch = start(run), task.load().batch(jax.random.key(0), 0)
    (total, (count, outcome)), plain = summed_loss(state.params, run, batch, None), run.replace(loss_terms=())
    base = summed_loss(state.params, plain, batch, None)[0]
    z = jnp.square(jax.nn.logsumexp(outcome.output, axis=-1))
    expected = base + count * (
        0.1 * (z * batch.weights).sum() / batch.weights.sum() + 1e-4 * jnp.square(outcome.output).mean()
    )
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    whole, parts = (backward(state, replace_at(run, {"training.micro_batches": n}), batch)[1] for n in (1, 2))
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_command_line_accepts_user_defined_classes():
    run = Run(model=BASE, task=Copy(symbols=V - 1, length=3))
    changed = override(
        run,
        [
            "model.feed_forward=Mixture(experts=4)",
            "model.attention=Decayed(rate=0.25)",
            "optimizer=AdamW(decay=Halving())",
            "loss_terms=(Small(weight=0.5), ZLoss())",
            "model.norm_kind=Tanh",
        ],
    )
    assert changed.model.feed_forward == Mixture(experts=4)
    assert changed.model.attention == Decayed(rate=0.25)
    assert changed.optimizer.decay == Halving()
    assert changed.loss_terms == (Small(weight=0.5), ZLoss())
    assert changed.model.norm_kind == Tanh()
    with pytest.raises(UserError, match=r"model.feed_forward is 'Mixtre\(\)'; did you mean 'Mixture'"):
        override(run, ["model.feed_forward=Mixtre()"])


def test_an_error_lists_the_valid_components():
    expected = r"ModelConfig.feed_forward is .*; expected Dense, .*Mixture.* or another FeedForward or None"
    with pytest.raises(UserError, match=expected):
        ModelConfig(feed_forward=RMSNorm())


def test_a_plain_field_is_rejected_with_the_alternatives():
    with pytest.raises(UserError, match=r"Odd.size is a plain field; expected static\(...\)"):

        class Odd(FeedForward):
            size: int = 3

    assert "Odd" not in choices(FeedForward)


def test_an_axis_without_a_size_is_named():
    class Odd(FeedForward):
        class Weights(Parameters):
            up: Float[Array, "d_model d_hiden"] = param(fan_in="d_model")

    with pytest.raises(UserError, match="a weight of Odd has the axis 'd_hiden'"):
        specs(BASE.replace(feed_forward=Odd()))


def test_a_run_with_user_defined_classes_is_written_and_read(tmp_path):
    run = Run(model=model_of("pattern"), task=Copy(symbols=V - 1, length=3), loss_terms=(Small(),))
    write_config(tmp_path, run)
    assert read_config(tmp_path) == run
    assert "test_components.Mixture" in str(canonical(run))


def test_pattern_blocks_have_their_own_weights_and_distinct_blocks_share():
    config = model_of("pattern")
    names = [name for name, _ in table(specs(config))]
    assert "blocks/0/attention/out" in names
    assert "blocks/1/attention/query" in names
    assert "blocks/1/feed_forward/router" in names
    assert "blocks/0/feed_forward/router" not in names
    shared = model_of("shared weights")
    assert {name.split("/")[1] for name, _ in table(specs(shared)) if name.startswith("blocks")} == {"0", "1"}
    loop = [shared.block_of_layer(layer) for layer in range(4)]
    group = [shared.replace(sharing="group").block_of_layer(layer) for layer in range(4)]
    assert (loop, group) == ([0, 1, 0, 1], [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distinct_blocks": 2}, "distinct_blocks is 2; expected a divisor of layers 3"),
        ({"pattern": (Block(),) * 4}, "pattern has 4 blocks; expected at most layers 3"),
        ({"pattern": (Block(residual=Two()),)}, "pattern has a residual rule other than the model's Residual"),
        ({"pattern": (Block(attention=Attention(heads=5)),)}, "heads is 5; expected a divisor of d_model 12"),
        ({"attention": Mean(), "d_memory": 5}, "cross_attention is None with attention Mean"),
    ],
)
def test_contradictory_stacks_are_rejected(changes, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        BASE.replace(**changes)


class Gate(Attention):
    """Attention with a gate on its update: overrides `apply`, and no method for decoding."""

    class Weights(Attention.Weights):
        gate: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        y, aux = super().apply(weights, x, context)
        return y * jax.nn.sigmoid(x @ weights.gate), aux


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize("reads_memory", [False, True], ids=["self", "cross"])
def test_decoding_uses_an_overridden_apply_of_attention(reads_memory):
    config = ModelConfig(vocabulary=7, layers=2, d_model=8, attention=Gate(heads=2))
    given = {}
    if reads_memory:
        config = config.replace(attention=Attention(heads=2), cross_attention=Gate(heads=2), d_memory=8)
        dice = np.random.default_rng(1)
        given = {"memory": jnp.asarray(dice.standard_normal((2, 3, 8)), jnp.float32)}
        given["memory_valid"] = jnp.array([[True, True, True], [True, True, False]])
    assert config.attention.has_state == reads_memory
    params, tokens = init(jax.random.key(0), config), jnp.arange(10).reshape(2, 5) % 7
    whole = apply(params, config, tokens, **given)
    cache, found = new_cache(params, config, (2,), 5, **given), []
    for piece in (slice(0, 3), slice(3, 4), slice(4, 5)):
        output, cache = extend(params, config, tokens[:, piece], cache)
        found.append(output)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("declaration", "message"), [
    ({}, "fan_in ''; expected those of its axes"),
    ({"fan_in": "layers"}, "fan_in 'layers'; expected those of its axes"),
    ({"fan_in": "d_model", "when": "bia"}, "depends on 'bia'; did you mean 'bias'"),
], ids=["none", "another axis", "misspelt"])  # fmt: skip
def test_an_incomplete_weight_declaration_is_rejected(declaration, message):
    class Odd(Dense):
        class Weights(Parameters):
            up: Float[Array, "d_model d_ff"] | None = param(**declaration)

    with pytest.raises(UserError, match=message):
        specs(ModelConfig(feed_forward=Odd()))
