"""`flaxformer check`: good models pass every law, and each planted fault is named by its law."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

from flaxformer.cli import main
from flaxformer.config import (
    POST,
    Attention,
    BatchNorm,
    Dense,
    LanguageModel,
    ModelConfig,
    Norm,
    Positions,
    RMSNorm,
    Rotary,
    TokenMixer,
)
from flaxformer.laws import LAWS, check
from flaxformer.nn.masks import Causal
from flaxformer.params import Parameters, param
from flaxformer.struct import UserError, leaf
from flaxformer.tasks import Copy, MaskedTokens, StandardLibrary
from flaxformer.training import Run, Training

BASE = ModelConfig(vocabulary=6, layers=2, d_model=12, attention=Attention(heads=2), feed_forward=Dense(d_ff=10))


def run_of(**changes):
    task = Copy(symbols=5, length=3, batch_size=4, evaluation_batches=2)
    return Run(model=BASE.replace(**changes), task=task, training=Training(steps=2))


class OffByOne(Attention):
    def apply(self, weights, x, context):
        return super().apply(weights, x, context.replace(mask=Causal(1)))


class LeakingNorm(Norm):
    def apply(self, weights, x, context):
        return x - x.mean((-1, -2), keepdims=True)


class ForgetfulMixer(TokenMixer):
    """A decaying sum whose decoding state loses the last token of each call."""

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def _scan(self, weights, x, state, context):
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid

        def one(state, now):
            token, real = now
            state = jnp.where(real[..., None], 0.5 * state + jnp.where(real[..., None], token, 0), state)
            return state, state

        return jax.lax.scan(one, state, (jnp.moveaxis(x, -2, 0), jnp.moveaxis(valid, -1, 0)))

    def apply(self, weights, x, context):
        _, seen = self._scan(weights, x, jnp.zeros((*x.shape[:-2], x.shape[-1]), x.dtype), context)
        return jnp.moveaxis(seen, 0, -2) @ weights.out

    def init_state(self, weights, batch, capacity, dtype):
        return jnp.zeros((*batch, weights.out.shape[0]), dtype)

    def step(self, weights, x, state, context):
        _, seen = self._scan(weights, x, state, context)
        before = jnp.concatenate([state[None], seen])[-2]
        return jnp.moveaxis(seen, 0, -2) @ weights.out, before


class DeadWeight(Dense):
    class Weights(Dense.Weights):
        unused: Float[Array, "d_model d_ff"] = param(fan_in="d_model")


class BiasBeforeMask(Attention):
    def normalize(self, weights, logits, mask):
        return jax.nn.softmax(jnp.where(mask, logits, -2.0))


class Overflow(Dense):
    def apply(self, weights, x, context):
        big = jnp.square(1000 * x)
        return super().apply(weights, x, context) + jnp.sqrt(big) / 1000


class BatchMixing(Dense):
    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return y - 0.1 * y.mean(0, keepdims=True)


class CountsPadding(Attention):
    def apply(self, weights, x, context):
        y, aux = super().apply(weights, x, context)
        return y * x.shape[-2] / 7, aux


class DeadNumber(Dense):
    strength: float = leaf(1.0)


@jax.custom_vjp
def halved_gradient(x):
    return jnp.tanh(x)


halved_gradient.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (0.5 * g * (1 - jnp.tanh(x) ** 2),))


class WrongGradient(Dense):
    def apply(self, weights, x, context):
        return super().apply(weights, halved_gradient(x), context)


class OnlyUnrolled(Dense):
    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return 2 * y if isinstance(context.layer, int) and context.layer == 1 else y


class EagerOnly(Dense):
    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return y if isinstance(x, jax.core.Tracer) else 1.5 * y


class LoudHead(LanguageModel):
    def apply(self, weights, x, table, context, norm):
        y, aux = super().apply(weights, x, table, context, norm)
        return 8 * y, aux


class SilentPositions(Positions):
    def encode(self, weights, positions, d_model):
        return jnp.zeros((positions.shape[-1], d_model))


class BrokenComponent(Dense):
    def apply(self, weights, x, context):
        return x @ weights.up


FAULTS = {
    "off-by-one causal mask": ("causality", {"attention": OffByOne(heads=2)}),
    "leak through a norm": ("causality", {"norm_kind": LeakingNorm()}),
    "state that forgets a token": ("decoding", {"attention": ForgetfulMixer()}),
    "dead weight": ("weights", {"feed_forward": DeadWeight(d_ff=10)}),
    "bias added before masking": ("causality", {"attention": BiasBeforeMask(heads=2)}),
    "float16 overflow": ("precision", {"feed_forward": Overflow(d_ff=10)}),
    "sequences that influence each other": ("batch", {"feed_forward": BatchMixing(d_ff=10)}),
    "padding that counts": ("padding", {"attention": CountsPadding(heads=2)}),
    "number without effect": ("fields", {"feed_forward": DeadNumber(d_ff=10)}),
    "wrong gradient": ("gradients", {"feed_forward": WrongGradient(d_ff=10)}),
    "right in one layout": ("layout", {"feed_forward": OnlyUnrolled(d_ff=10)}),
    "right under jit alone": ("compilation", {"feed_forward": EagerOnly(d_ff=10)}),
    "loud head": ("start", {"head": LoudHead()}),
    "positions without effect": ("order", {"positions": SilentPositions(), "visibility": "full"}),
    "wrong shape": ("causality", {"feed_forward": BrokenComponent(d_ff=10)}),
}


DEFAULT = {"off-by-one causal mask", "state that forgets a token", "dead weight", "padding that counts", "wrong shape"}


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.slow) for name in FAULTS]
)
def test_a_planted_fault_is_named_by_its_law(fault):
    name, changes = FAULTS[fault]
    run = run_of(**changes) if changes.get("visibility") != "full" else _bidirectional(**changes)
    [result] = check(run, [name])
    assert result.finding.verdict == "violated", result
    assert result.finding.words


def _bidirectional(**changes):
    task = MaskedTokens(text=StandardLibrary(length=8), batch_size=4, evaluation_batches=2)
    return Run(model=BASE.replace(vocabulary=task.vocabulary, **changes), task=task, training=Training(steps=2))


GOOD = {
    "default": {},
    "post, rotary, rms": {"norm": POST, "norm_kind": RMSNorm(), "positions": Rotary()},
    "batch norm": {"norm_kind": BatchNorm()},
}


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=() if name == "default" else pytest.mark.slow) for name in GOOD]
)
def test_a_sound_model_passes_every_law(model):
    results = {result.law: result.finding for result in check(run_of(**GOOD[model]))}
    assert list(results) == list(LAWS)
    assert not {name: one for name, one in results.items() if one.verdict == "violated"}


def test_an_exemption_is_reported_with_its_reason():
    class Exempt(BatchMixing):
        exempt_from: ClassVar = {"batch": "subtracts the mean of the batch"}

    [result] = check(run_of(feed_forward=Exempt(d_ff=10)), ["batch"])
    assert result.finding.verdict == "not applicable"
    assert "Exempt declares: subtracts the mean of the batch" in result.finding.words


def test_an_unknown_law_is_refused():
    with pytest.raises(UserError, match="law is 'casality'; did you mean 'causality'"):
        list(check(run_of(), ["casality"]))


FILE = """
from flaxformer.config import Attention, Dense, ModelConfig
from flaxformer.nn.masks import Causal
from flaxformer.tasks import Copy
from flaxformer.training import Run, Training

class OffByOne(Attention):
    def apply(self, weights, x, context):
        return super().apply(weights, x, context.replace(mask=Causal({offset})))

run = Run(
    model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=OffByOne(heads=2), feed_forward=Dense(d_ff=11)),
    task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
    training=Training(steps=2),
)
"""


@pytest.mark.parametrize(("offset", "code"), [(0, 0), (1, 1)])
def test_the_command_prints_a_table_and_exits_by_the_verdict(tmp_path, capsys, offset, code):
    (tmp_path / "own.py").write_text(FILE.format(offset=offset))
    assert main(["check", str(tmp_path / "own.py"), "--laws", "causality", "weights"]) == code
    shown = " ".join(capsys.readouterr().out.split())
    assert ("causality violated the answers up to token 0" in shown) == bool(code)
    assert "weights ok" in shown
    assert ("exempt_from" in shown) == bool(code)
