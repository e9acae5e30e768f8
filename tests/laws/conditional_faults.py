"""Faults that appear under a condition alone: late, in one row, at one batch size, on one side, in one layer, ….

`CONDITIONS` is the table of laws and conditions; each entry names a fault that the law must find.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from faulty_components import DecayingSum, Symbols, bidirectional, run_of
from jaxtyping import Array, Float

from flaxformer.components import Attention, Dense, LanguageModel, NoPositions, Norm, Residual, TokenMixer
from flaxformer.core.params import Parameters, param
from flaxformer.core.pytree import Node
from flaxformer.tasks.batch import Source
from flaxformer.training import AdamW, LossTerm, Optimizer, Run, Schedule, Training

LATE = 12
"""Index of the first token of a late fault; sequences of the task have 10, and those of the laws 15."""


def late(x):
    """True at late tokens, [T, 1]."""
    return (jnp.arange(x.shape[-2]) >= LATE)[:, None]


def following(x):
    """Each token's successor; the last token's is zeros."""
    return jnp.concatenate([x[..., 1:, :], jnp.zeros_like(x[..., :1, :])], axis=-2)


def preceding(x):
    return jnp.concatenate([jnp.zeros_like(x[..., :1, :]), x[..., :-1, :]], axis=-2)


def in_layer(context, number, value):
    """The value in one layer, and zeros in the others."""
    return jnp.where(jnp.asarray(context.layer) == number, value, 0)


def real(x, context):
    """x with zeros at padding."""
    return x if context.valid is None else jnp.where(context.valid[..., None], x, 0)


class Changed(Attention):
    """Attention whose update is changed by `change`."""

    def apply(self, weights, x, context):
        y, aux = super().apply(weights, x, context)
        return self.change(y, real(x, context), context), aux


class ChangedDense(Dense):
    """Dense network whose update is changed by `change`."""

    def apply(self, weights, x, context):
        return self.change(super().apply(weights, x, context), x, context)


# --- causality ---------------------------------------------------------------------------------------------


class AheadLate(Changed):
    def change(self, y, x, context):
        return y + jnp.where(late(x), following(x), 0)


class AheadLateInTraining(Changed):
    def change(self, y, x, context):
        return y + jnp.where(late(x), following(x), 0) if context.training else y


class AheadInLastRow(Changed):
    def change(self, y, x, context):
        return y.at[-1].add(following(x)[-1]) if x.ndim > 2 and x.shape[0] > 2 else y


class AheadInLargeBatch(Changed):
    def change(self, y, x, context):
        return y + following(x) if x.ndim > 2 and x.shape[0] >= 8 else y


class AheadInSecondLayer(Changed):
    def change(self, y, x, context):
        return y + in_layer(context, 1, following(x))


class AheadInGradient(Changed):
    def change(self, y, x, context):
        return y + following(x) - jax.lax.stop_gradient(following(x))


class FiniteMaskValue(Attention):
    """A mask value that large logits exceed."""

    def normalize(self, weights, logits, mask):
        return jax.nn.softmax(jnp.where(mask, logits, -1e4))


# --- padding -----------------------------------------------------------------------------------------------


class Averaging(TokenMixer):
    """Running mean of real tokens, times a matrix; subclasses sum or count wrongly."""

    reads_mask: ClassVar[bool] = False

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        return self.mean(jnp.where(valid[..., None], x, 0), x, valid, context) @ weights.out

    def mean(self, x, unmasked, valid, context):
        return jnp.cumsum(x, axis=-2) / jnp.maximum(jnp.cumsum(valid, axis=-1), 1)[..., None]


class DividesByIndex(Averaging):
    def mean(self, x, unmasked, valid, context):
        return jnp.cumsum(x, axis=-2) / (1 + jnp.arange(x.shape[-2]))[:, None]


class ShiftsArray(Averaging):
    """Reads the array's entry before a token, which may be padding."""

    def mean(self, x, unmasked, valid, context):
        return preceding(x)


class PaddingOfFirstRow(Averaging):
    def mean(self, x, unmasked, valid, context):
        valid = jnp.broadcast_to(valid[:1], valid.shape) if valid.ndim > 1 else valid
        return jnp.cumsum(x, axis=-2) / jnp.maximum(jnp.cumsum(valid, axis=-1), 1)[..., None]


class ReadsLatePadding(Averaging):
    def mean(self, x, unmasked, valid, context):
        return super().mean(jnp.where(late(x), unmasked, x), unmasked, valid, context)


class CountsPaddingInTraining(Averaging):
    def mean(self, x, unmasked, valid, context):
        return super().mean(unmasked if context.training else x, unmasked, valid, context)


class ReadsPaddingInSecondLayer(Averaging):
    def mean(self, x, unmasked, valid, context):
        return super().mean(x + in_layer(context, 1, unmasked - x), unmasked, valid, context)


class PaddingInGradient(Averaging):
    def mean(self, x, unmasked, valid, context):
        read = x + jnp.sin(unmasked) - jax.lax.stop_gradient(jnp.sin(unmasked))
        return super().mean(read, unmasked, valid, context)


class CountsFromEnd(Averaging):
    """Weights that depend on the length of the array."""

    def mean(self, x, unmasked, valid, context):
        return jnp.cumsum(x / (x.shape[-2] - jnp.arange(x.shape[-2]))[:, None], axis=-2)


# --- the batch ---------------------------------------------------------------------------------------------


class LargeBatchNorm(Norm):
    """Statistics of the batch in evaluation, from 8 sequences on."""

    def apply(self, weights, x, context):
        x = x - x.mean(-1, keepdims=True)
        is_large = not context.training and x.ndim > 2 and x.shape[0] >= 8
        return x - x.mean(0, keepdims=True) if is_large else x


class BatchOfOne(ChangedDense):
    def change(self, y, x, context):
        return 2 * y if x.ndim > 2 and x.shape[0] == 1 else y


class BatchOfTwo(ChangedDense):
    def change(self, y, x, context):
        return y[::-1] if x.ndim > 2 and x.shape[0] == 2 else y


class BatchOfThree(ChangedDense):
    def change(self, y, x, context):
        return y - 0.1 * y.mean(0) if x.ndim > 2 and x.shape[0] == 3 else y


class ReadsRowAfterNext(ChangedDense):
    def change(self, y, x, context):
        return y + 0.1 * jnp.roll(y, -2, axis=0)


class LastRowReadsFirst(ChangedDense):
    def change(self, y, x, context):
        return y.at[-1].add(0.1 * y[0]) if x.ndim > 2 and x.shape[0] > 1 else y


class BatchLate(ChangedDense):
    def change(self, y, x, context):
        return y - jnp.where(late(x), y.mean(0), 0) if x.ndim > 2 else y


class RowsInTraining(ChangedDense):
    def change(self, y, x, context):
        return y * (1 + x.shape[0]) if context.training else y


class NeedsOneBatchAxis(TokenMixer):
    """Adds the first token, by an index that needs one batch axis."""

    reads_mask: ClassVar[bool] = False

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        return (real(x, context) + x[:, :1]) @ weights.out


# --- tokens and order --------------------------------------------------------------------------------------


class ShiftLate(ChangedDense):
    def change(self, y, x, context):
        return y + jnp.where(late(x), preceding(x), 0)


class ShiftInTraining(ChangedDense):
    def change(self, y, x, context):
        return y + in_layer(context, 1, preceding(x)) if context.training else y


class SecondLayerMixes(Residual):
    def join(self, weights, stream, update, context):
        return stream + update + in_layer(context, 1, preceding(update))


class KnowsLatePlaces(Attention):
    def combine(self, weights, attention, value, mask):
        place = (jnp.arange(value.shape[-3]) >= 9).reshape((1,) * (value.ndim - 3) + (-1, 1, 1))
        return super().combine(weights, attention, value * (1 + place).astype(value.dtype), mask)


# --- decoding ----------------------------------------------------------------------------------------------


class Forgets(DecayingSum):
    """Sum of a window of tokens, whereas the whole sequence is summed."""

    reads_mask: ClassVar[bool] = False
    window: ClassVar[int] = 13

    def apply(self, weights, x, context):
        return jnp.cumsum(real(x, context), axis=-2) @ weights.out

    def init_state(self, weights, batch, capacity, dtype):
        return jnp.zeros((*batch, self.window - 1, weights.out.shape[0]), dtype)

    def step(self, weights, x, state, context):
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid

        def token(state, now):
            x_t, is_real = now
            state = jnp.where(
                is_real[..., None, None], jnp.concatenate([state, x_t[..., None, :]], -2)[..., 1:, :], state
            )
            return state, state.sum(-2)

        # The state holds one token less than the window: its newest token is added here.
        state, y = jax.lax.scan(token, state, (jnp.moveaxis(real(x, context), -2, 0), jnp.moveaxis(valid, -1, 0)))
        return jnp.moveaxis(y, 0, -2) @ weights.out, state


class ForgetsLate(Forgets):
    window: ClassVar[int] = 15


class StateStep(DecayingSum):
    """State whose step is changed by `wrong`."""

    reads_mask: ClassVar[bool] = False

    def step(self, weights, x, state, context):
        y, after = super().step(weights, x, state, context)
        return y, self.wrong(after, x, state, context).astype(after.dtype)


class WrongAfterLongPrompt(StateStep):
    def wrong(self, after, x, state, context):
        return 0.5 * after if x.shape[-2] > 6 else after


class WrongLate(StateStep):
    def wrong(self, after, x, state, context):
        return jnp.where(context.offset >= LATE, 0.9, 1.0) * after


class StateOfOtherRows(StateStep):
    def wrong(self, after, x, state, context):
        return jnp.roll(after, 1, axis=0)


class StateOfOneRow(StateStep):
    def wrong(self, after, x, state, context):
        return 0 * after if after.shape[0] == 1 else after


class StateReadsLatePadding(StateStep):
    def wrong(self, after, x, state, context):
        if context.valid is None or x.shape[-2] > 1:
            return after
        is_late_padding = ~context.valid & (context.offset >= 6)
        return jnp.where(is_late_padding, 0.5, 1.0) * after


class WrongInSecondLayer(StateStep):
    def wrong(self, after, x, state, context):
        return after + in_layer(context, 1, 0.1 * after)


class RoundedState(StateStep):
    def wrong(self, after, x, state, context):
        return after.astype(jnp.bfloat16)


class Entries(Node):
    """Inputs so far, which `pad_to` enlarges at the wrong end."""

    inputs: Array

    def pad_to(self, capacity):
        widths = [(0, 0)] * self.inputs.ndim
        widths[-2] = (capacity - self.inputs.shape[-2], 0)
        return Entries(jnp.pad(self.inputs, widths))


class EnlargedInFront(TokenMixer):
    """Sum of all tokens that the state holds."""

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def init_state(self, weights, batch, capacity, dtype):
        return Entries(jnp.zeros((*batch, capacity, weights.out.shape[0]), dtype))

    def apply(self, weights, x, context):
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], x.shape[-2], x.dtype), context)[0]

    def step(self, weights, x, state, context):
        start = 0 if context.offset is None else context.offset
        inputs = jax.lax.dynamic_update_slice_in_dim(
            state.inputs, real(x, context).astype(state.inputs.dtype), start, state.inputs.ndim - 2
        )
        reads = jnp.arange(inputs.shape[-2]) <= start + jnp.arange(x.shape[-2])[:, None]
        return (reads.astype(x.dtype) @ inputs) @ weights.out, Entries(inputs)


# --- edits, weights, gradients -----------------------------------------------------------------------------


class IgnoresEditInSecondLayer(Dense):
    def apply(self, weights, x, context):
        edited = context.edit("hidden", x)
        return super().apply(weights, jnp.where(jnp.asarray(context.layer) == 1, x, edited), context)


class StoppedInTraining(Dense):
    class Weights(Dense.Weights):
        gate: Float[Array, "d_model"] = param(init="ones")

    def apply(self, weights, x, context):
        gate = jax.lax.stop_gradient(weights.gate) if context.training else weights.gate
        return super().apply(weights, x * gate, context)


@jax.custom_vjp
def clipped_gradient(x):
    return x**2


clipped_gradient.defvjp(lambda x: (x**2, x), lambda x, g: (g * jnp.clip(2 * x, -12, 12),))


class WrongGradientWhereLarge(ChangedDense):
    def change(self, y, x, context):
        return clipped_gradient(y)


@jax.custom_vjp
def late_gradient(x):
    return jnp.tanh(x)


late_gradient.defvjp(
    lambda x: (jnp.tanh(x), x), lambda x, g: (jnp.where(late(x), 0.9, 1.0) * g * (1 - jnp.tanh(x) ** 2),)
)


class WrongGradientLate(ChangedDense):
    def change(self, y, x, context):
        return late_gradient(y)


class WrongGradientInSecondLayer(ChangedDense):
    def change(self, y, x, context):
        share = in_layer(context, 1, 0.1)
        return (1 - share) * y + share * jax.lax.stop_gradient(y)


# --- precision ---------------------------------------------------------------------------------------------


class SquareInFloat16(ChangedDense):
    def change(self, y, x, context):
        return y + jnp.square(x.astype(jnp.float16)).astype(x.dtype)


class ExponentialWithoutMaximum(ChangedDense):
    def change(self, y, x, context):
        weights = jnp.exp(x)
        return y * weights / weights.sum(-1, keepdims=True)


class LogOfExponential(ChangedDense):
    """softplus(x) as log(1 + exp(x))."""

    def change(self, y, x, context):
        return y + jnp.log(1 + jnp.exp(x))


class WrongInFloat32(ChangedDense):
    def change(self, y, x, context):
        return 1.1 * y if x.dtype == jnp.float32 else y


# --- repetition, layout, group -----------------------------------------------------------------------------

CALLS: list[int] = []


class CountsCallsInTraining(ChangedDense):
    def change(self, y, x, context):
        if not context.training:
            return y
        CALLS.append(1)
        return y * (1 + 0.01 * len(CALLS))


class GradientByLayout(ChangedDense):
    """A gradient that is stopped if the number of the layer is traced."""

    def change(self, y, x, context):
        return y if isinstance(context.layer, int) else y + 0.1 * x - 0.1 * jax.lax.stop_gradient(x)


MEMO: dict[str, Array] = {}


class PassesByGlobal(ChangedDense):
    """Passes a value to the next layer by a global variable, in place of `carried`."""

    def change(self, y, x, context):
        before = (
            MEMO.get("y", 0.0) if context.layer is not None and isinstance(context.layer, int) and context.layer else 0
        )
        MEMO["y"] = y
        return y + before


# --- random draws ------------------------------------------------------------------------------------------


def hide(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0).astype(x.dtype)


class SameDropout(ChangedDense):
    def change(self, y, x, context):
        return hide(jax.random.key(0), y) if context.training else y


class SameDropoutAtEachStep(ChangedDense):
    """Draws that differ between layers, and not between steps."""

    def change(self, y, x, context):
        return hide(jax.random.fold_in(jax.random.key(0), context.layer), y) if context.training else y


class SameStochasticDepth(Residual):
    def join(self, weights, stream, update, context):
        keep = jax.random.bernoulli(jax.random.PRNGKey(3), 0.5) if context.training else True
        return stream + jnp.where(keep, update, 0)


class SameNoiseInNorm(Norm):
    def apply(self, weights, x, context):
        x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
        return x + 0.1 * jax.random.normal(jax.random.key(1), x.shape, x.dtype) if context.training else x


class SameNoiseInHead(LanguageModel):
    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        noise = jax.random.normal(jax.random.key(5), output.shape, output.dtype)
        return super().training_loss(output + 0.1 * noise, aux, targets, weights, label_smoothing)


KEYS: dict[str, Array] = {}


class KeyOfFirstLayer(ChangedDense):
    """Dropout with the key of the first layer in all layers."""

    def change(self, y, x, context):
        if not context.training:
            return y
        if context.layer == 0:
            KEYS["first"] = context.key
        return hide(KEYS["first"], y)


# --- data, loss, rate, optimizer ---------------------------------------------------------------------------


class Repeated(Source):
    """A source that gives the batch of every second step twice."""

    inner: Source

    def batch(self, key, step):
        return self.inner.batch(key, step // 2)

    def evaluation(self):
        return self.inner.evaluation()


class EachBatchTwice(Symbols):
    def load(self):
        return Repeated(super().load())


class SecondRowReadsUnscored(LanguageModel):
    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        total, count = super().training_loss(output, aux, targets, weights, label_smoothing)
        return total + (0.1 * targets[1].mean() if targets.ndim > 1 and len(targets) > 1 else 0), count


class ValidationReadsUnscored(LanguageModel):
    def loss(self, output, targets, weights, label_smoothing=None):
        total, count = super().loss(output, targets, weights, label_smoothing)
        return total + 0.1 * targets.mean(), count


class DividedByRows(LossTerm):
    def value(self, params, outcome, batch):
        return (jnp.square(outcome.output).mean(-1) * batch.weights).sum() / len(batch.weights), batch.weights.sum()


class UndefinedAtEnd(Schedule):
    def fraction(self, progress, ratio):
        return jnp.sqrt(0.93 - progress)


class NegativeInWarmUp(Schedule):
    def multiplier(self, progress, ratio, final):
        return jnp.where(ratio <= 1, -1.0, 1.0)


class Normalized(Optimizer):
    """Direction of norm 1 per array, in the place where no view per layer is given: beside `direction`."""

    def direction(self):
        return optax.identity()

    def decayed(self, scales):
        def scale(updates, params=None):
            return jax.tree.map(lambda u: u / jnp.sqrt(jnp.square(u).sum() + 1e-12), updates)

        return [optax.stateless(scale)]


class ByNumberOfWeights(Optimizer):
    def direction(self):
        return optax.stateless(lambda u, params: jax.tree.map(lambda x: x / len(jax.tree.leaves(u)), u))


class ByOrder(Optimizer):
    """A step size that falls with the place of a weight in the tree."""

    def direction(self):
        def scale(updates, params=None):
            leaves, structure = jax.tree.flatten(updates)
            return jax.tree.unflatten(structure, [x / (1 + place) for place, x in enumerate(leaves)])

        return optax.stateless(scale)


class ByFirstWeight(Optimizer):
    """An update that depends on another weight."""

    def direction(self):
        def scale(updates, params=None):
            first = jnp.square(jax.tree.leaves(params)[0]).mean()
            return jax.tree.map(lambda u: u * (1 + first), updates)

        return optax.stateless(scale)


def ff(kind: type) -> dict[str, Any]:
    return {"feed_forward": kind(d_ff=10)}


def mixer(kind: type) -> dict[str, Any]:
    return {"attention": kind(heads=2) if issubclass(kind, Attention) else kind(), "positions": NoPositions()}


CONDITIONS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    # (law, condition): words of the finding, changes of the model
    ("causality", "late"): ("up to token 12", mixer(AheadLate)),
    ("causality", "late, in training"): ("in training", mixer(AheadLateInTraining)),
    ("causality", "last row"): ("AheadInLastRow", mixer(AheadInLastRow)),
    ("causality", "batch of 8"): ("AheadInLargeBatch", mixer(AheadInLargeBatch)),
    ("causality", "second layer"): ("block 1", mixer(AheadInSecondLayer)),
    ("causality", "gradient alone"): ("gradient", mixer(AheadInGradient)),
    ("causality", "large activations"): ("with large activations", mixer(FiniteMaskValue)),
    ("padding", "before"): ("before the tokens", mixer(DividesByIndex)),
    ("padding", "between"): ("between", mixer(ShiftsArray)),
    ("padding", "of another row"): ("tokens", mixer(PaddingOfFirstRow)),
    ("padding", "late"): ("tokens", mixer(ReadsLatePadding)),
    ("padding", "in training"): ("in training", mixer(CountsPaddingInTraining)),
    ("padding", "second layer"): ("tokens", mixer(ReadsPaddingInSecondLayer)),
    ("padding", "gradient alone"): ("gradient", mixer(PaddingInGradient)),
    ("padding", "behind"): ("behind the tokens", mixer(CountsFromEnd)),
    ("batch", "8 sequences"): ("LargeBatchNorm", {"norm_kind": LargeBatchNorm()}),
    ("batch", "1 sequence"): ("alone", ff(BatchOfOne)),
    ("batch", "2 sequences"): ("in one of 2", ff(BatchOfTwo)),
    ("batch", "3 sequences"): ("in one of 3", ff(BatchOfThree)),
    ("batch", "row after the next"): ("ReadsRowAfterNext", ff(ReadsRowAfterNext)),
    ("batch", "last row"): ("sequence 0 of 8 changes", ff(LastRowReadsFirst)),
    ("batch", "late"): ("BatchLate", ff(BatchLate)),
    ("batch", "in training, number of rows"): ("in training", ff(RowsInTraining)),
    ("batch", "no batch axis"): ("without a batch axis", mixer(NeedsOneBatchAxis)),
    ("tokens", "late"): ("ShiftLate", ff(ShiftLate)),
    ("tokens", "second layer, in training"): ("in training", ff(ShiftInTraining)),
    ("tokens", "residual rule of the second layer"): ("block 1", {"residual": SecondLayerMixes()}),
    ("order", "late places"): ("no positions", mixer(KnowsLatePlaces)),
    ("decoding", "window of 12 tokens"): ("token", mixer(Forgets)),
    ("decoding", "window of 14 tokens"): ("token", mixer(ForgetsLate)),
    ("decoding", "after a long prompt"): ("token", mixer(WrongAfterLongPrompt)),
    ("decoding", "late"): ("token", mixer(WrongLate)),
    ("decoding", "other rows"): ("padding", mixer(StateOfOtherRows)),
    ("decoding", "1 sequence"): ("token", mixer(StateOfOneRow)),
    ("decoding", "late padding"): ("padding", mixer(StateReadsLatePadding)),
    ("decoding", "second layer"): ("token", mixer(WrongInSecondLayer)),
    ("decoding", "rounded state"): ("token", mixer(RoundedState)),
    ("decoding", "enlarged state"): ("token", mixer(EnlargedInFront)),
    ("edits", "second layer"): ("blocks/1/feed_forward/hidden", ff(IgnoresEditInSecondLayer)),
    ("weights", "in training"): ("feed_forward/gate", ff(StoppedInTraining)),
    ("gradients", "large activations"): ("with matrices 4 times as large", ff(WrongGradientWhereLarge)),
    ("gradients", "late"): ("derivative by", ff(WrongGradientLate)),
    ("gradients", "second layer"): ("derivative by", ff(WrongGradientInSecondLayer)),
    ("precision", "square in float16"): ("1,000 times as large", ff(SquareInFloat16)),
    ("precision", "exponential without the maximum"): ("1,000 times as large", ff(ExponentialWithoutMaximum)),
    ("precision", "log of an exponential"): ("1,000 times as large", ff(LogOfExponential)),
    ("precision", "float32 alone"): ("float32 differ", ff(WrongInFloat32)),
    ("repetition", "in training"): ("two traces", ff(CountsCallsInTraining)),
    ("layout", "gradient alone"): ("gradients", ff(GradientByLayout)),
    ("layout", "passed by a global variable"): ("", ff(PassesByGlobal)),
    ("draws", "same in each layer and step"): ("2 random draws", ff(SameDropout)),
    ("draws", "same at each step"): ("2 random draws", ff(SameDropoutAtEachStep)),
    ("draws", "residual rule"): ("random draws", {"residual": SameStochasticDepth()}),
    ("draws", "norm"): ("random draws", {"norm_kind": SameNoiseInNorm()}),
    ("draws", "head's loss"): ("random draws", {"head": SameNoiseInHead()}),
    ("draws", "same in each layer"): ("feed_forward are the same in layers 0 and 1", ff(KeyOfFirstLayer)),
    ("loss", "second row"): ("with other targets of weight 0", {"head": SecondRowReadsUnscored()}),
    ("loss", "also in validation"): (
        "with other targets of weight 0",
        {"head": ValidationReadsUnscored()},
    ),
}
OF_TRAINING: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    # (law, condition): words of the finding, changes of the run
    ("loss", "term divided by the rows"): ("loss term DividedByRows", {"loss_terms": (DividedByRows(weight=1.0),)}),
    ("rate", "last step"): ("step 19 of 20 is nan (UndefinedAtEnd)", {"optimizer": AdamW(decay=UndefinedAtEnd())}),
    ("rate", "warm-up"): ("(NegativeInWarmUp)", {"optimizer": AdamW(decay=NegativeInWarmUp(), warmup_steps=5.0)}),
    ("data", "every second step"): ("steps 0 and 1 are equal", {"task": EachBatchTwice()}),
    ("updates", "norm over layers"): ("scanned", {"optimizer": Normalized()}),
    ("updates", "number of weights"): ("step 0", {"optimizer": ByNumberOfWeights()}),
    ("updates", "order of weights"): ("step 0", {"optimizer": ByOrder()}),
    ("updates", "another weight"): ("step 0", {"optimizer": ByFirstWeight()}),
}


def run_under(law: str, condition: str) -> Run:
    """Return the run with a fault of one of the tables."""
    if (law, condition) in OF_TRAINING:
        return run_of().replace(training=Training(steps=20)).replace(**OF_TRAINING[law, condition][1])
    build = bidirectional if law == "order" else run_of
    return build(**CONDITIONS[law, condition][1])
