"""Faulty components, each with the law that catches it."""

import time
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from flaxformer.components import (
    Attention,
    Dense,
    LanguageModel,
    NoPositions,
    Norm,
    Positions,
    Residual,
    TokenMixer,
    Tokens,
)
from flaxformer.components.component import Aux
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import leaf, static
from flaxformer.nn.masks import Causal
from flaxformer.tasks import Copy, MaskedTokens, StandardLibrary, SyntheticTask, next_token
from flaxformer.training import AdamW, LossTerm, Optimizer, Run, Schedule, Training

BASE = ModelConfig(vocabulary=6, layers=2, d_model=12, attention=Attention(heads=2), feed_forward=Dense(d_ff=10))


def run_of(**changes: Any) -> Run:
    """Return a small causal model with changes."""
    task = Copy(symbols=5, length=5, batch_size=4, evaluation_batches=2)
    return Run(model=BASE.replace(**changes), task=task, training=Training(steps=2))


def bidirectional(**changes: Any) -> Run:
    """Return a small bidirectional model with changes."""
    task = MaskedTokens(text=StandardLibrary(length=8), batch_size=4, evaluation_batches=2)
    model = BASE.replace(vocabulary=task.vocabulary, mask_pattern="bidirectional", **changes)
    return Run(model=model, task=task, training=Training(steps=2))


# --- the future --------------------------------------------------------------------------------------------


class OffByOne(Attention):
    def apply(self, weights, x, context):
        return super().apply(weights, x, context.replace(mask=Causal(1)))


class LooksAheadLate(Attention):
    """Reads one token ahead at the position 7 alone."""

    def apply(self, weights, x, context):
        y, aux = super().apply(weights, x, context)
        if x.shape[-2] > 8:
            y = y.at[..., 7, :].add(x[..., 8, :])
        return y, aux


class LeakInTraining(Dense):
    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return y - y.mean(-2, keepdims=True) if context.training else y


class LeakingNorm(Norm):
    """Statistics over the sequence too."""

    def apply(self, weights, x, context):
        return x - x.mean((-1, -2), keepdims=True)


class NormOverTime(Norm):
    def apply(self, weights, x, context):
        return x - x.mean(-2, keepdims=True)


class BiasBeforeMask(Attention):
    def normalize(self, weights, logits, mask):
        return jax.nn.softmax(jnp.where(mask, logits, -2.0))


class ChunkedSum(TokenMixer):
    """Cumulative sum that restarts at every chunk of 8 tokens, and so depends on the length."""

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        return jnp.cumsum(x, axis=-2) / x.shape[-2] @ weights.out


class CountsPadding(Attention):
    def apply(self, weights, x, context):
        y, aux = super().apply(weights, x, context)
        return y * x.shape[-2] / 7, aux


# --- padding -----------------------------------------------------------------------------------------------


class ReadsPadding(TokenMixer):
    """A running mean that reads padding before a token."""

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        count = jnp.arange(1, x.shape[-2] + 1).reshape((1,) * (x.ndim - 2) + (-1, 1))
        return jnp.cumsum(x, axis=-2) / count @ weights.out


class TimesMask(TokenMixer):
    """A running sum that multiplies padding by 0: of NaN, that is NaN."""

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        x = x if context.valid is None else x * context.valid[..., None]
        return jnp.cumsum(x, axis=-2) @ weights.out


class NaNWithoutKeys(Attention):
    """A softmax that is NaN where no key is allowed."""

    def normalize(self, weights, logits, mask):
        return jax.nn.softmax(jnp.where(mask, logits, -jnp.inf))


# --- the batch ---------------------------------------------------------------------------------------------


class BatchMixing(Dense):
    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return y - 0.1 * y.mean(0, keepdims=True)


class BatchInTraining(Dense):
    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return y - 0.1 * y.mean(0, keepdims=True) if context.training else y


class DividesByRows(Dense):
    def apply(self, weights, x, context):
        return super().apply(weights, x, context) * (1 + x.shape[0])


# --- tokens and order --------------------------------------------------------------------------------------


class TokenShift(Dense):
    """A feed-forward that reads the token before."""

    def apply(self, weights, x, context):
        before = jnp.roll(x, 1, axis=-2).at[..., 0, :].set(0)
        return super().apply(weights, x + 0.5 * before, context)


class MixingResidual(Residual):
    def join(self, weights, stream, update, context):
        return stream + update + 0.1 * jnp.roll(update, 1, axis=-2)


class SilentPositions(Positions):
    def encode(self, weights, positions, d_model):
        return jnp.zeros((positions.shape[-1], d_model))


class KnowsOrder(Attention):
    """Attention that weights a value by its place."""

    def combine(self, weights, attention, value, mask):
        place = jnp.arange(value.shape[-3]).reshape((1,) * (value.ndim - 3) + (-1, 1, 1))
        return super().combine(weights, attention, value * (1 + place).astype(value.dtype), mask)


# --- decoding ----------------------------------------------------------------------------------------------


class DecayingSum(TokenMixer):
    """A decaying sum, y_t = s_t W with s_t = s_{t−1} / 2 + x_t; subclasses have faulty decoding states."""

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def scan(self, weights, x, state, context):
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid

        def one(state, now):
            token, real = now
            state = jnp.where(real[..., None], 0.5 * state + jnp.where(real[..., None], token, 0), state)
            return state, state

        state, seen = jax.lax.scan(one, state, (jnp.moveaxis(x, -2, 0), jnp.moveaxis(valid, -1, 0)))
        return jnp.moveaxis(seen, 0, -2), state

    def apply(self, weights, x, context):
        seen, _ = self.scan(weights, x, jnp.zeros((*x.shape[:-2], x.shape[-1]), x.dtype), context)
        return seen @ weights.out

    def init_state(self, weights, batch, capacity, dtype):
        return jnp.zeros((*batch, weights.out.shape[0]), dtype)

    def step(self, weights, x, state, context):
        seen, state = self.scan(weights, x, state, context)
        return seen @ weights.out, state


class ForgetsToken(DecayingSum):
    """State that loses the last token of each call."""

    def step(self, weights, x, state, context):
        seen, _ = self.scan(weights, x, state, context)
        return seen @ weights.out, jnp.concatenate([state[..., None, :], seen], axis=-2)[..., -2, :]


class WrongAfterChunk(DecayingSum):
    """The state is wrong after a call with several tokens."""

    def step(self, weights, x, state, context):
        y, after = super().step(weights, x, state, context)
        return y, after if x.shape[-2] == 1 else 0.5 * after


class WrongAfterSteps(DecayingSum):
    """The state is wrong after six tokens."""

    def step(self, weights, x, state, context):
        y, state = super().step(weights, x, state, context)
        return y, jnp.where(context.offset >= 6, 0.9, 1.0).astype(state.dtype) * state


class StateReadsPadding(DecayingSum):
    """State that decays at padding in decoding."""

    def step(self, weights, x, state, context):
        valid = context.valid
        x = x if valid is None else jnp.where(valid[..., None], x, 0)
        return super().step(weights, x, state, context.replace(valid=None))


# --- weights and fields ------------------------------------------------------------------------------------


class DeadWeight(Dense):
    class Weights(Dense.Weights):
        unused: Float[Array, "d_model d_ff"] = param(fan_in="d_model")


class NoGradient(Dense):
    """A weight that is used, but behind a stop of the gradient."""

    class Weights(Dense.Weights):
        gate: Float[Array, "d_model"] = param(init="ones")

    def apply(self, weights, x, context):
        gate = jax.lax.stop_gradient(weights.gate).reshape((1,) * (x.ndim - 1) + (-1,))
        return super().apply(weights, x * gate, context)


class FirstLayerOnly(Dense):
    """Weight that only the first layer uses."""

    class Weights(Dense.Weights):
        gate: Float[Array, "d_model"] = param(init="ones")

    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        gate = jnp.where(jnp.asarray(context.layer) == 0, weights.gate, 1).reshape((1,) * (x.ndim - 1) + (-1,))
        return y * gate


class DeadHead(Attention):
    def combine(self, weights, attention, value, mask):
        return super().combine(weights, attention, value, mask).at[..., 1, :].set(0)


class DeadNumber(Dense):
    strength: float = leaf(1.0)


class NumberTimesZero(Dense):
    strength: float = leaf(1.0)

    def apply(self, weights, x, context):
        return super().apply(weights, x, context) + 0 * self.strength


class DeadChoice(Dense):
    kernel: int = static(3)
    mode: str = static("a", choices=("a", "b"))

    def apply(self, weights, x, context):
        return super().apply(weights, x, context) * (self.kernel / 3)


class CancelledChoice(Dense):
    kernel: int = static(3)

    def apply(self, weights, x, context):
        scale = jnp.asarray(float(self.kernel), x.dtype)
        return super().apply(weights, x * scale / scale, context) if self.kernel > 0 else x


@jax.custom_vjp
def halved_gradient(x):
    return jnp.tanh(x)


halved_gradient.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (0.5 * g * (1 - jnp.tanh(x) ** 2),))


class WrongGradient(Dense):
    def apply(self, weights, x, context):
        return super().apply(weights, halved_gradient(x), context)


class WrongGradientOfOne(Dense):
    """A wrong gradient of one small weight."""

    class Weights(Dense.Weights):
        gain: Float[Array, ""] = param(init="ones", decay=False)

    def apply(self, weights, x, context):
        gain = 0.9 * weights.gain + 0.1 * jax.lax.stop_gradient(weights.gain)
        return super().apply(weights, x, context) * gain


# --- precision ---------------------------------------------------------------------------------------------


class Overflow(Dense):
    def apply(self, weights, x, context):
        big = jnp.square(1000 * x)
        return super().apply(weights, x, context) + jnp.sqrt(big) / 1000


class WrongInBfloat16(Dense):
    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return 1.5 * y if x.dtype == jnp.bfloat16 else y


class LargeMaskValue(Attention):
    """Mask value that overflows float16."""

    def normalize(self, weights, logits, mask):
        logits = logits.astype(weights.value.dtype)
        masked = jnp.where(mask, logits, jnp.asarray(-1e9, logits.dtype))
        return jax.nn.softmax(masked - masked.min(-1, keepdims=True) * 0)


# --- execution ---------------------------------------------------------------------------------------------


class OnlyUnrolled(Dense):
    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return 2 * y if isinstance(context.layer, int) and context.layer == 1 else y


class TableOfLayers(Dense):
    """A Python dictionary by layer, which a scan cannot read."""

    def apply(self, weights, x, context):
        return super().apply(weights, x, context) * {0: 1.0, 1: 2.0}[context.layer]


class UnrolledInTraining(OnlyUnrolled):
    def apply(self, weights, x, context):
        return super().apply(weights, x, context if context.training else context.replace(layer=0))


class EagerOnly(Dense):
    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return y if isinstance(x, jax.core.Tracer) else 1.5 * y


class WrongInGroup(Dense):
    """Callback that does not distinguish the trials of a group."""

    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        scaled = jax.pure_callback(
            lambda y: (np.mean(np.abs(y)) * np.asarray(y)).astype(np.asarray(y).dtype),
            jax.ShapeDtypeStruct(y.shape, y.dtype), jax.lax.stop_gradient(y), vmap_method="expand_dims",
        )  # fmt: skip
        return y + jax.lax.stop_gradient(scaled)


class NumPyRandom(Dense):
    def apply(self, weights, x, context):
        return super().apply(weights, x, context) * np.random.default_rng().uniform(0.9, 1.1)


class DropoutInEvaluation(Dense):
    """Dropout by the key of the step in training, and by a constant one in evaluation."""

    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        key = jax.random.key(0) if context.key is None else context.key
        return jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y / 0.9, 0)


class ReadsClock(Dense):
    def apply(self, weights, x, context):
        return super().apply(weights, x, context) * (1 + (time.perf_counter() % 1))


CALLS = []


class MutatesGlobal(Dense):
    def apply(self, weights, x, context):
        CALLS.append(1)
        return super().apply(weights, x, context) * (1 + 0.01 * len(CALLS))


class Callback(Dense):
    """Random numbers of NumPy at run time."""

    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        noise = jax.pure_callback(
            lambda y: np.random.default_rng().standard_normal(np.shape(y)).astype(np.asarray(y).dtype),
            jax.ShapeDtypeStruct(y.shape, y.dtype), jax.lax.stop_gradient(y), vmap_method="expand_dims",
        )  # fmt: skip
        return y + jax.lax.stop_gradient(noise)


class BatchLoss(Dense):
    """Loss that is not a mean over tokens."""

    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return y, Aux(losses={"balance": jnp.square(y.mean((0, 1))).sum()})


class HiddenLoop(Dense):
    """Products in a loop of unknown length."""

    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        square = weights.up @ weights.down
        more = jax.lax.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] @ square), (0, jax.lax.stop_gradient(x))
        )
        return y + jax.lax.stop_gradient(more[1])


class LoudHead(LanguageModel):
    def apply(self, weights, x, table, context, norm):
        y, aux = super().apply(weights, x, table, context, norm)
        return 8 * y, aux


class BrokenComponent(Dense):
    def apply(self, weights, x, context):
        return x @ weights.up


class IgnoresEdit(Dense):
    """Dense, which names its hidden vectors and uses others."""

    def apply(self, weights, x, context):
        context.edit("hidden", x)
        return super().apply(weights, x, context)


class OtherWhenEdited(Attention):
    """Attention that computes something else if its weights are edited."""

    def normalize(self, weights, logits, mask):
        return super().normalize(weights, logits, mask)

    def apply(self, weights, x, context):
        return super().apply(weights, 1.01 * x if context.is_edited("weights") else x, context)


class DeadTerm(LossTerm):
    strength: float = leaf(1.0)

    def value(self, params, outcome, batch):
        return jnp.square(outcome.output).sum(), jnp.asarray(outcome.output.size, jnp.float32)


class WideTokens(Tokens):
    """An embedding in float32, whatever the dtype of its table."""

    def apply(self, weights, inputs, token_types, table, sizes):
        x = super().apply(weights, inputs, token_types, table, sizes)
        return x.astype(jnp.promote_types(x.dtype, jnp.float32))


class ShiftedInputs(Tokens):
    """An embedding that reads the next token."""

    def apply(self, weights, inputs, token_types, table, sizes):
        x = super().apply(weights, inputs, token_types, table, sizes)
        return x + 0.1 * jnp.roll(x, -1, axis=-2)


FAULTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # name: law, what its message says, changes of the model
    "off-by-one causal mask": ("causality", "block 0, attention (OffByOne)", {"attention": OffByOne(heads=2)}),
    "looks ahead at one place": ("causality", "token 7", {"attention": LooksAheadLate(heads=2)}),
    "leak through a norm": ("causality", "LeakingNorm", {"norm_kind": LeakingNorm()}),
    "norm over time": ("causality", "NormOverTime", {"norm_kind": NormOverTime()}),
    "leak in training": ("causality", "in training", {"feed_forward": LeakInTraining(d_ff=10)}),
    "bias added before masking": ("causality", "BiasBeforeMask", {"attention": BiasBeforeMask(heads=2)}),
    "depends on the length": ("causality", "tokens alone", {"attention": ChunkedSum()}),
    "embedding that reads ahead": ("causality", "embedding (ShiftedInputs", {"inputs": ShiftedInputs()}),
    "wrong shape": (
        "causality",
        "feed_forward BrokenComponent gives an update of shape [8, 15, 10]",
        {"feed_forward": BrokenComponent(d_ff=10)},
    ),
    "padding that counts": ("padding", "padding", {"attention": CountsPadding(heads=2)}),
    "padding that is read": ("padding", "padding", {"attention": ReadsPadding()}),
    "padding times zero": ("padding", "NaN", {"attention": TimesMask(), "positions": NoPositions()}),
    "NaN without keys": ("padding", "nan", {"attention": NaNWithoutKeys(heads=2), "positions": NoPositions()}),
    "sequences that influence each other": ("batch", "BatchMixing", {"feed_forward": BatchMixing(d_ff=10)}),
    "sequences in training": ("batch", "in training", {"feed_forward": BatchInTraining(d_ff=10)}),
    "number of sequences": ("batch", "alone", {"feed_forward": DividesByRows(d_ff=10)}),
    "feed-forward that mixes tokens": ("tokens", "TokenShift", {"feed_forward": TokenShift(d_ff=10)}),
    "residual rule that mixes tokens": ("tokens", "", {"residual": MixingResidual()}),
    "state that forgets a token": ("decoding", "token", {"attention": ForgetsToken()}),
    "state wrong after a chunk": ("decoding", "token", {"attention": WrongAfterChunk()}),
    "state wrong after steps": ("decoding", "token", {"attention": WrongAfterSteps()}),
    "state that reads padding": ("decoding", "padding", {"attention": StateReadsPadding()}),
    "positions without effect": ("order", "SilentPositions", {"positions": SilentPositions()}),
    "dead weight": ("weights", "blocks/0/feed_forward/unused", {"feed_forward": DeadWeight(d_ff=10)}),
    "stopped gradient": ("weights", "feed_forward/gate", {"feed_forward": NoGradient(d_ff=10)}),
    "weight of one layer": ("weights", "blocks/1/feed_forward/gate", {"feed_forward": FirstLayerOnly(d_ff=10)}),
    "dead head": ("weights", "axis heads", {"attention": DeadHead(heads=2)}),
    "number without effect": ("fields", "model.feed_forward.strength", {"feed_forward": DeadNumber(d_ff=10)}),
    "number times zero": ("fields", "model.feed_forward.strength", {"feed_forward": NumberTimesZero(d_ff=10)}),
    "choice without effect": ("fields", "model.feed_forward.mode", {"feed_forward": DeadChoice(d_ff=10)}),
    "choice that cancels": ("fields", "model.feed_forward.kernel", {"feed_forward": CancelledChoice(d_ff=10)}),
    "wrong gradient": ("gradients", "derivative by", {"feed_forward": WrongGradient(d_ff=10)}),
    "wrong gradient of one weight": ("gradients", "feed_forward/gain", {"feed_forward": WrongGradientOfOne(d_ff=10)}),
    "float16 overflow": ("precision", "float16 are not finite", {"feed_forward": Overflow(d_ff=10)}),
    "embedding in float32": ("precision", "the embedding (WideTokens) is float32", {"inputs": WideTokens()}),
    "wrong in bfloat16": ("precision", "bfloat16 differ", {"feed_forward": WrongInBfloat16(d_ff=10)}),
    "mask value of float32": ("precision", "LargeMaskValue", {"attention": LargeMaskValue(heads=2)}),
    "NumPy's random numbers": ("repetition", "two traces", {"feed_forward": NumPyRandom(d_ff=10)}),
    "dropout in evaluation": ("draws", "of each example in evaluation", {"feed_forward": DropoutInEvaluation(d_ff=10)}),
    "reads the clock": ("repetition", "two traces", {"feed_forward": ReadsClock(d_ff=10)}),
    "mutates a global": ("repetition", "two traces", {"feed_forward": MutatesGlobal(d_ff=10)}),
    "random at run time": ("repetition", "two runs", {"feed_forward": Callback(d_ff=10)}),
    "right in one layout": ("layout", "block 1, feed_forward (OnlyUnrolled)", {"feed_forward": OnlyUnrolled(d_ff=10)}),
    "layout in training": ("layout", "training losses", {"feed_forward": UnrolledInTraining(d_ff=10)}),
    "layers of a dictionary": ("layout", "faulty_components.py", {"feed_forward": TableOfLayers(d_ff=10)}),
    "right under jit alone": ("compilation", "EagerOnly", {"feed_forward": EagerOnly(d_ff=10)}),
    "wrong in a group": ("group", "trial 0", {"feed_forward": WrongInGroup(d_ff=10)}),
    "loss of the whole batch": ("devices", "depends on the whole batch", {"feed_forward": BatchLoss(d_ff=10)}),
    "products in a hidden loop": ("operations", "while", {"feed_forward": HiddenLoop(d_ff=10)}),
    "point that is not used": (
        "edits",
        "zeros at blocks/0/feed_forward/hidden (IgnoresEdit) do not change the output",
        {"feed_forward": IgnoresEdit(d_ff=10)},
    ),
    "another result if edited": (
        "edits",
        "an edit of blocks/0/attention/weights (OtherWhenEdited) that returns its argument",
        {"attention": OtherWhenEdited(heads=2)},
    ),
    "loud head": ("start", "the initial loss is", {"head": LoudHead()}),
}
BIDIRECTIONAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "order without positions": (
        "order",
        "no positions",
        {"positions": NoPositions(), "attention": KnowsOrder(heads=2)},
    ),
    "positions without effect, bidirectional": ("order", "SilentPositions", {"positions": SilentPositions()}),
    "norm over time, bidirectional": ("tokens", "NormOverTime", {"norm_kind": NormOverTime()}),
}


def run_with(fault: str) -> Run:
    """Return the run with a fault."""
    if fault in BIDIRECTIONAL:
        return bidirectional(**BIDIRECTIONAL[fault][2])
    return run_of(**FAULTS[fault][2])


# --- data, loss, optimizer ---------------------------------------------------------------------------------


class Symbols(SyntheticTask):
    """Five random tokens."""

    batch_size: int = static(4, at_least=1)
    evaluation_batches: int = static(2, at_least=1)
    vocabulary: ClassVar[int] = 6
    sequence_length: ClassVar[int] = 5

    def tokens(self, key):
        return jax.random.randint(key, 6, 0, 6)

    def example(self, key):
        tokens = self.tokens(key)
        return next_token(tokens, scored=tokens >= 0)


class DrawnByNumPy(Symbols):
    def tokens(self, key):
        return jnp.asarray(np.random.randint(0, 6, 6))


class SameExample(Symbols):
    def tokens(self, key):
        return jnp.arange(6)


class BeyondVocabulary(Symbols):
    def tokens(self, key):
        return 1 + jax.random.randint(key, 6, 0, 6)


class NothingScored(Symbols):
    def example(self, key):
        tokens = self.tokens(key)
        return next_token(tokens, scored=tokens < 0)


class ReadsUnscored(LanguageModel):
    """Smooths targets by those of all tokens."""

    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        total, count = super().training_loss(output, aux, targets, weights, label_smoothing)
        return total + 0.1 * targets.mean(), count


class AccuracyOfAll(LanguageModel):
    def accuracy(self, output, targets, weights):
        return (output.argmax(-1) == targets).sum().astype(output.dtype), weights.sum()


class MeanAsSum(LanguageModel):
    by_token: ClassVar[bool] = False

    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        total, count = super().training_loss(output, aux, targets, weights, label_smoothing)
        return total / count, jnp.ones(())


class MeanOfOutputs(LanguageModel):
    by_token: ClassVar[bool] = True

    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        output = output - output.mean(tuple(range(output.ndim - 1)), keepdims=True)
        return super().training_loss(output, aux, targets, weights, label_smoothing)


class MeanOfAllTargets(LanguageModel):
    """A mean over all targets, also those of weight 0."""

    by_token: ClassVar[bool] = False

    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        total, _ = super().training_loss(output, aux, targets, weights, label_smoothing)
        return total / weights.size, jnp.ones(())


class CountOfScored(LanguageModel):
    """The number of scored targets in place of the sum of their weights."""

    by_token: ClassVar[bool] = False

    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        total, _ = super().training_loss(output, aux, targets, weights, label_smoothing)
        return total, (weights > 0).sum().astype(total.dtype)


class EntropyOfAll(LossTerm):
    """A mean over all outputs, also those of padding."""

    def of_outputs(self, output, targets, weights):
        log_p = jax.nn.log_softmax(output)
        return (jnp.exp(log_p) * log_p).sum(), jnp.asarray(float(weights.size))


class SquaredMean(LossTerm):
    def value(self, params, outcome, batch):
        return jnp.square((outcome.output.max(-1) * batch.weights).mean()), jnp.ones(())


class MeanOfChunk(LossTerm):
    def of_outputs(self, output, targets, weights):
        return jnp.square(output.mean()) * weights.sum(), weights.sum()


class BelowZero(Schedule):
    def fraction(self, progress, ratio):
        return 1 - 1.5 * progress


class Undefined(Schedule):
    def fraction(self, progress, ratio):
        return jnp.sqrt(0.5 - progress)


class IdleBeta(Optimizer):
    beta: float = leaf(0.9, at_least=0, below=1)
    used: float = leaf(0.9, at_least=0, below=1)
    nesterov: bool = static(False)

    def direction(self):
        return optax.trace(decay=self.used)


class IdleShare(Schedule):
    share: float = leaf(0.5)

    def fraction(self, progress, ratio):
        return 1 - progress


TRAINING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "NumPy draws the data": ("data", "inputs of a batch differ between two draws", {"task": DrawnByNumPy()}),
    "same example at every step": ("data", "batches of steps 0 and 1 are equal", {"task": SameExample()}),
    "token beyond the vocabulary": ("data", "hold 6; expected ids from 0 to 5", {"task": BeyondVocabulary()}),
    "nothing is scored": ("data", "expected at least one scored target", {"task": NothingScored()}),
    "loss of unscored targets": ("loss", "with other targets of weight 0", {"head": ReadsUnscored()}),
    "accuracy of unscored targets": ("loss", "the accuracy of a batch and that with other", {"head": AccuracyOfAll()}),
    "mean in place of a sum": ("loss", "the loss of a batch and that from its rows one by one", {"head": MeanAsSum()}),
    "mean over targets of weight 0": ("loss", "loss of a batch and that from its row", {"head": MeanOfAllTargets()}),
    "number of targets in place of their weights": (
        "loss",
        "with weights that are twice as large",
        {"head": CountOfScored()},
    ),
    "mean over padding": (
        "loss",
        "if no other row is scored differ",
        {"loss_terms": (EntropyOfAll(weight=1.0),)},
    ),
    "by_token reads other outputs": ("loss", "from one token at a time", {"head": MeanOfOutputs()}),
    "square of a mean": (
        "loss",
        "loss term SquaredMean of a batch and that from its rows",
        {"loss_terms": (SquaredMean(),)},
    ),
    "of_outputs reads other outputs": ("loss", "from one token at a time", {"loss_terms": (MeanOfChunk(weight=1.0),)}),
    "negative rate": ("rate", "(BelowZero)", {"optimizer": AdamW(decay=BelowZero())}),
    "rate that is not a number": ("rate", "is nan (Undefined)", {"optimizer": AdamW(decay=Undefined())}),
    "optimizer numbers without effect": (
        "fields",
        "changing optimizer.beta, optimizer.nesterov, optimizer.decay.share changes nothing",
        {"optimizer": IdleBeta(decay=IdleShare())},
    ),
}
"""Faults of other parts of a run than its model: law, words of the finding, and changes."""


def trained_with(fault: str) -> Run:
    """Return the run with a fault of its training."""
    changes = dict(TRAINING[fault][2])
    model = {name: changes.pop(name) for name in ("head",) if name in changes}
    return run_of(**model).replace(training=Training(steps=20), **changes)
