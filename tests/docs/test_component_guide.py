"""The Python of the pages on components runs, and each of their components works in a model."""

import functools
import re
import shlex
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from flaxformer.components import FeedForward, Head, TokenMixer, Vectors
from flaxformer.components.component import Aux
from flaxformer.config import ModelConfig
from flaxformer.core.overrides import override
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import leaf, static
from flaxformer.model import apply, extend, init, new_cache, run
from flaxformer.system.errors import UserError
from flaxformer.tasks import Batch, ScaledIndex
from flaxformer.training import AdamW, Run, Training, learning_rate, start, train_step
from flaxformer.training.loss import loss

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/components.md").read_text()
B, T, V, D = 2, 5, 11, 8
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, V, (B, T)))


@pytest.fixture(autouse=True)
def broadcasting_as_in_a_users_program():
    with jax.numpy_rank_promotion("allow"):
        yield


@functools.cache
def page():
    """All names that the pages define; the blocks of Python of each are run in their order as a file."""
    names = {}
    for path in sorted((ROOT / "docs").glob("component*.md")):
        file = {"__name__": path.stem}
        for block in re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
            exec(block, file)
        names |= file
    return names


def model(**changes):
    """A tiny model with a component of the page, which is named by its expression."""
    fields = {"vocabulary": V, "layers": 2, "d_model": D, "attention": "Attention(heads=2)"}
    fields |= {"feed_forward": "Dense(d_ff=12)"} | changes
    return ModelConfig(**{name: eval(value, page()) if type(value) is str else value for name, value in fields.items()})


def shaken(params):
    """The weights with noise, so that none is hidden behind an initial 0."""
    dice = np.random.default_rng(0)
    return jax.tree.map(lambda x: x + jnp.asarray(0.1 * dice.standard_normal(x.shape), x.dtype), params)


MODELS = {
    "attention": {
        "attention": "SigmoidAttention(heads=2, query_key_norm=DynamicTanh())",
        "norm_kind": "DynamicTanh()",
        "positions": "LogDistance()",
        "residual": "Gate()",
        "initializer": "FanOut()",
        "inputs": "LowRankTokens(rank=3)",
        "feed_forward": "Power(hidden=12, rate=0.5)",
        "head": "Focal()",
        "layers": 1,
    },
    "positions that see queries": {"positions": "QueryDecay()", "layers": 1},
    "decoding state, experts, streams": {
        "attention": "LeakyMean()",
        "feed_forward": "Experts(hidden=6)",
        "residual": "Streams(streams=3)",
    },
    "gates, tokens of a feed-forward": {
        "attention": "GatedHeads(heads=2)",
        "feed_forward": "TokenValues()",
        "layers": 1,
    },
    "wide keys, shifted tokens": {
        "attention": "Forgetting(heads=2)",
        "feed_forward": "TokenShift(d_ff=12)",
        "layers": 1,
    },
    "shared keys and values": {"layers": 2, "pattern": "half_the_cache.pattern"},
    "no decoding state, carried values": {"attention": "MeanOfReadable()", "feed_forward": "EarlierMean(d_ff=12)"},
}
"""Decoders with the examples of the page, together every one that a decoder can have."""


@functools.partial(jax.jit, static_argnames="is_decoded")
def evaluated(weights, own, batch, is_decoded):
    """The training loss and its gradient; the outputs of the whole sequences, and those by decoding in two chunks."""
    config, given = own.model, {key: x for key, x in batch.arguments.items() if x is not None}
    (value, outcome), gradient = jax.value_and_grad(loss, has_aux=True)(weights, own, batch, jax.random.key(1))
    if not is_decoded:
        return value, gradient, outcome.aux, outcome.output, None
    cache, found = new_cache(weights, config, (B,), T + 1), []
    for chunk in (slice(0, 4), slice(4, 5)):
        output, cache = extend(weights, config, batch.inputs[:, chunk], cache, valid=batch.valid[:, chunk])
        found.append(output)
    return value, gradient, outcome.aux, apply(weights, config, batch.inputs, **given), jnp.concatenate(found, axis=1)


def run_of(config, **fields):
    """A run with that model; of a task that is not used, but is one that the model can learn."""
    task = ScaledIndex(length=T, batch_size=B) if config.inputs.reads == "vectors" else page()["Parity"](bits=T)
    return Run(model=config, task=task, training=Training(micro_batches=1), **fields)


def assert_trains(value, gradient, unused="key_bias"):
    """Every weight has a finite gradient, and one that is not zero but for those whose name has `unused`."""
    assert np.isfinite(value)
    for path, g in jax.tree_util.tree_leaves_with_path(gradient):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(g).all(), name
        assert np.any(g) or name.endswith("key_bias") or unused in name, f"no gradient reaches {name}"


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize("name", MODELS)
def test_each_model_trains_and_decodes_to_the_outputs_of_the_whole_sequence(name):
    config = model(**MODELS[name])
    valid = jnp.ones((B, T), bool).at[0, 1].set(False)
    positions = jnp.maximum(valid.cumsum(-1) - 1, 0)
    batch = Batch(inputs=TOKENS, targets=TOKENS, weights=valid * 1.0, valid=valid, positions=positions)
    weights = shaken(init(jax.random.key(0), config))
    value, gradient, aux, whole, found = evaluated(weights, run_of(config), batch, is_decoded=True)
    reads_tokens_alone = "tokens of a feed-forward" in name  # such a branch does not read the vectors of its norm
    assert_trains(value, gradient, "feed_forward_connection.pre" if reads_tokens_alone else "key_bias")
    np.testing.assert_allclose(found[valid], whole[valid], rtol=2e-5, atol=2e-5)
    if "experts" in name:
        load = aux.statistics["blocks/feed_forward/load"]
        np.testing.assert_allclose(load.sum(-1), [1, 1], rtol=1e-5)
        assert aux.losses["blocks/feed_forward/balance"] > 0


@pytest.mark.long
def test_the_cross_attention_trains_and_decodes():
    config = page()["translator"].replace(vocabulary=V, d_model=D)
    config = config.replace(encoder=config.encoder.replace(vocabulary=V, d_model=D))
    assert type(config.cross).__name__ == "SharpCrossAttention"

    @jax.jit
    def outputs(weights):
        whole, pull = jax.vjp(lambda weights: apply(weights, config, TOKENS, source=TOKENS), weights)
        cache = new_cache(weights, config, (B,), T, source=TOKENS)
        return whole, extend(weights, config, TOKENS, cache)[0], pull(whole)[0]

    whole, found, gradient = outputs(shaken(init(jax.random.key(0), config)))
    np.testing.assert_allclose(found, whole, rtol=2e-5, atol=2e-5)
    assert np.any(gradient.blocks[0].cross_attention.log_temperature)


def test_the_head_with_its_own_loss_learns_the_median():
    config = model(inputs=Vectors(width=1), head="PinballHead()", layers=1)
    own = run_of(config)
    batch = own.task.load().batch(jax.random.key(0), 0)
    weights = shaken(init(jax.random.key(0), config))
    value, gradient, _, output, _ = evaluated(weights, own, batch, is_decoded=False)
    assert_trains(value, gradient)
    np.testing.assert_allclose(value, 0.5 * jnp.abs(output - batch.targets).mean(), rtol=1e-5)


def test_a_decoder_that_mixes_by_means_has_an_encoder_with_attention():
    config = page()["mean_translator"]
    assert type(config.encoder.attention) is type(config.cross) is page()["Attention"]
    assert type(config.attention).__name__ == "LeakyMean"


def test_attention_among_half_of_the_tokens_trains():
    config = model(attention="HalfOfTheTokens()", layers=1)
    own = run_of(config)
    batch = Batch(inputs=TOKENS, targets=TOKENS, weights=jnp.ones((B, T)), valid=jnp.ones((B, T), bool))
    value, gradient, *_ = evaluated(shaken(init(jax.random.key(0), config)), own, batch, is_decoded=False)
    assert_trains(value, gradient)


def test_the_optimizer_by_kind_the_sphere_and_the_plateau_train_together():
    optimizer = page()["SignOfQueries"](learning_rate=1e-2, decay=page()["Plateau"](patience=1))
    own = Run(
        model=model(vocabulary=4, layers=1, feed_forward="OnSphere(d_ff=12)"),
        task=page()["Parity"](bits=4, batch_size=B),
        optimizer=optimizer,
        training=Training(steps=10, micro_batches=1),
    )
    state, step, rates = start(own), jax.jit(train_step), []
    batch = own.task.load().batch(jax.random.key(0), 0)
    moved = state.params.blocks[0].attention.query
    for _ in range(3):
        state, metrics = step(state, own, batch)
        rates.append(float(metrics["learning_rate"]))
    block = state.params.blocks[0]
    np.testing.assert_allclose(jnp.linalg.norm(block.feed_forward.up, axis=0), 1, rtol=1e-5)
    assert float(jnp.abs(block.attention.query - moved).max()) <= 3e-2 * 1.001
    assert rates[0] == pytest.approx(1e-2)


def test_the_focal_loss_with_focus_0_is_the_cross_entropy():
    head = page()["Focal"](focus=0.0)
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, V)))
    own = head.training_loss(logits, Aux(), TOKENS, jnp.ones((B, T)))
    np.testing.assert_allclose(own, head.loss(logits, TOKENS, jnp.ones((B, T))), rtol=1e-5)


def test_the_task_optimizer_schedule_and_loss_term_train_together():
    term = page()["LogitPenalty"](weight=0.5)
    optimizer = page()["Signum"](learning_rate=1e-2, decay=page()["StableDecay"](share=0.5))
    own = Run(
        model=model(vocabulary=4, layers=1),
        task=page()["Parity"](bits=4, batch_size=B),
        optimizer=optimizer,
        loss_terms=(term,),
        training=Training(steps=10, micro_batches=1),
    )
    batch = own.task.load().batch(jax.random.key(0), 0)
    assert batch.weights.sum() == B
    state = start(own)
    step = jax.jit(train_step)
    after, metrics = step(state, own, batch)
    moved = jnp.abs(after.params.blocks[0].attention.out - state.params.blocks[0].attention.out)
    np.testing.assert_allclose(moved, 1e-2, rtol=1e-3)
    _, without = step(state, own.replace(loss_terms=(term.replace(weight=0.0),)), batch)
    assert metrics["loss"] > without["loss"]
    rates = [float(learning_rate(optimizer, step, 10)) for step in (0, 4, 9)]
    assert rates[0] == rates[1] == pytest.approx(1e-2)
    assert rates[2] < 5e-3


def test_the_patterns_are_models():
    kinds = [type(own.attention).__name__ for own in page()["hybrid"].layer_configs]
    assert kinds == ["Retention"] * 3 + ["Attention"]
    every = [type(own.feed_forward).__name__ for own in page()["experts_in_every_second_layer"].layer_configs]
    assert every == ["Dense", "MixtureOfExperts"] * 2
    assert page()["looped"].blocks == 1


def test_the_study_measures_and_takes_the_commands_overrides():
    study = page()["study"]
    assert [arm.name for arm in study.arms()] == [f"feed_forward={name}" for name in ("dense", "power", "cubic")]
    lines = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL).group(1).splitlines()
    for line in lines:
        changes = [word for word in shlex.split(line, comments=True) if "=" in word]
        changed = override(study.baseline, changes)
        assert (changed != study.baseline) == bool(changes), line
    own = study.baseline.replace(model=model(feed_forward="Experts(hidden=6)", vocabulary=4, layers=1),
                                 task=page()["Parity"](bits=4, batch_size=B, evaluation_batches=1))  # fmt: skip
    measured = jax.jit(lambda key: page()["measure"](init(key, own.model), own))(jax.random.key(0))
    assert 0.25 <= measured["largest_load"] <= 1


# --- mistakes ----------------------------------------------------------------------------------------------


def feed_forward(apply=None, weights=None, **members):
    """An instance of a feed-forward network, Faulty, with these members."""
    members |= {} if apply is None else {"apply": apply}
    if weights is not None:
        weights.__name__ = "Weights"
        members["Weights"] = weights
    return type("Faulty", (FeedForward,), {"__module__": __name__, **members})()


class NoAxes(Parameters):
    up: Array = param(fan_in="d_model")


class NotDeclared(Parameters):
    up: Float[Array, "d_model"]


class Misspelt(Parameters):
    up: Float[Array, "d_modle"] = param(init="ones")


class NotParameters:
    pass


def identity(self, weights, x, context):
    return x


def called(**parts):
    config = model(layers=1, **parts)
    return jax.eval_shape(lambda key: apply(init(key, config), config, TOKENS), jax.random.key(0))


def plain_field():
    return type("Faulty", (FeedForward,), {"__module__": __name__, "__annotations__": {"size": int}, "size": 3})


def narrow_losses():
    return called(feed_forward=feed_forward(lambda self, w, x, c: (x, Aux(losses={"a": x.sum(-1)}))))


class Carrier(TokenMixer):
    reads_mask: ClassVar[bool] = False

    def initial_carry(self, x):
        return {"a": x}

    def apply(self, weights, x, context):
        return x


def carrier_decodes():
    config = model(attention=Carrier(), layers=1)
    return jax.eval_shape(lambda key: new_cache(init(key, config), config, (B,), T), jax.random.key(0))


class NoFanIn(Parameters):
    up: Float[Array, "d_model d_model"] = param()


class NoSuchField(Parameters):
    up: Float[Array, "d_model"] = param(std="widht")


MISTAKES = {
    "plain field": plain_field,
    "class": lambda: ModelConfig(feed_forward=page()["Dense"]),
    "family": lambda: ModelConfig(feed_forward=page()["Attention"]()),
    "unknown field": lambda: page()["Experts"](expert=3),
    "no param": lambda: called(feed_forward=feed_forward(identity, NotDeclared)),
    "no axes": lambda: called(feed_forward=feed_forward(identity, NoAxes)),
    "axis": lambda: called(feed_forward=feed_forward(identity, Misspelt)),
    "no fan-in": lambda: called(feed_forward=feed_forward(identity, NoFanIn)),
    "no such field": lambda: called(feed_forward=feed_forward(identity, NoSuchField)),
    "plain weights": lambda: called(feed_forward=feed_forward(identity, NotParameters)),
    "init": lambda: param(init="zero"),
    "no apply": lambda: called(feed_forward=feed_forward()),
    "shape": lambda: called(feed_forward=feed_forward(lambda self, w, x, c: x[..., :3])),
    "dict": lambda: called(feed_forward=feed_forward(lambda self, w, x, c: (x, {"a": 1}))),
    "loss": narrow_losses,
    "carrier": carrier_decodes,
    "mask": lambda: ModelConfig(attention=page()["LeakyMean"](), mask_pattern="bidirectional"),
    "command": lambda: override(Run(), ["model.feed_forward=Expert()"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_page_has_the_message_of_each_mistake(name):
    page()
    rows = PAGE[PAGE.index("## Common mistakes") :].splitlines()
    written = [
        row.strip("| ").rpartition(" | ")[2].strip("`").replace("\\|", "|") for row in rows if row.startswith("| ")
    ]
    patterns = [".*".join(map(re.escape, message.split("…"))) for message in written]
    with pytest.raises((UserError, ValueError, NotImplementedError)) as error:
        MISTAKES[name]()
    assert any(re.search(pattern, str(error.value)) for pattern in patterns), str(error.value)


# --- what the page says of random numbers, precision and changed weights -----------------------------------


class Draws(FeedForward):
    """Half of the numbers set to 0 in training, by the branch's own key."""

    rate: float = leaf(0.5)

    def apply(self, weights, x, context):
        return x if context.key is None else x * jax.random.bernoulli(context.key, 1 - self.rate, x.shape)


class DrawingHead(Head):
    predicts: ClassVar = "tokens"

    def outputs(self, vocabulary):
        return vocabulary

    def apply(self, weights, x, table, context, norm):
        return jnp.zeros(x.shape) if context.key is None else jax.random.normal(context.key, x.shape)


def test_a_components_draws_are_not_those_of_the_models_dropout():
    config = model(feed_forward=Draws(), dropout=0.5, layers=1)
    weights = init(jax.random.key(0), config)
    call = jax.jit(
        lambda key: run(weights, config, TOKENS, {}, dropout_key=key, return_intermediates=True).intermediates
    )
    branch = call(jax.random.key(1)).blocks[0].feed_forward
    zero = float((branch.update == 0).mean())
    assert 0.6 < zero < 0.9  # ¾ of independent draws; ½ of equal ones


def test_a_head_draws_in_training_and_not_in_evaluation():
    config = model(head=DrawingHead(), layers=0)
    weights = init(jax.random.key(0), config)
    drawn = run(weights, config, TOKENS, {}, dropout_key=jax.random.key(1)).output
    assert drawn.std() > 0.5
    assert not np.any(apply(weights, config, TOKENS))


class Wide(FeedForward):
    """The input in float32."""

    def apply(self, weights, x, context):
        return x.astype(jnp.float32)


@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_the_stream_keeps_its_precision_whatever_a_component_gives(layout):
    config = model(feed_forward=Wide())
    weights = jax.tree.map(lambda x: x.astype(jnp.bfloat16), init(jax.random.key(0), config, layout))
    found = jax.eval_shape(lambda: run(weights, config, TOKENS, {}, return_intermediates=True).intermediates)
    assert all(
        branch.stream.dtype == jnp.bfloat16 for branch in (found.blocks[0].feed_forward, found.blocks[1].attention)
    )


class Counter(FeedForward):
    """Number of training steps, as a weight that the call changes."""

    size: int = static(1)

    class Weights(Parameters):
        count: Float[Array, ""] = param(init="zeros", decay=False, trained=False)

    def apply(self, weights, x, context):
        return x, Aux(weights={"count": weights.count + 1} if context.training else {})


class WholeCounter(Counter):
    mixes_batch: ClassVar[bool] = True


def test_weights_that_a_call_changes_are_kept_or_refused_and_never_lost():
    task = page()["Parity"](bits=4, batch_size=4)

    def own(component, parts):
        return Run(model=model(vocabulary=4, layers=1, feed_forward=component), task=task, optimizer=AdamW(),
                   training=Training(steps=1, micro_batches=parts))  # fmt: skip

    batch = task.load().batch(jax.random.key(0), 0)
    one = own(WholeCounter(), None)
    assert jax.jit(train_step)(start(one), one, batch)[0].params.blocks[0].feed_forward.count == 1
    with pytest.raises(UserError, match="micro_batches is 2 with WholeCounter, which needs the whole batch"):
        own(WholeCounter(), 2)
    two = own(Counter(), 2)
    with pytest.raises(UserError, match=r"changes blocks/0/feed_forward/count, .*expected mixes_batch = True"):
        jax.eval_shape(train_step, start(two), two, batch)


def test_only_static_fields_are_axes():
    class Traced(FeedForward):
        size: int = leaf(3)

    assert Traced().axis_sizes({}) == {}
    assert Counter().axis_sizes({}) == {"size": 1}
