"""Loss, gradient and scores from chunks of tokens equal those from all logits, which are then never in memory."""

import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import Attention, Classifier, Dense, LanguageModel, LayerNorm, Tokens
from flaxformer.config import ModelConfig
from flaxformer.core.struct import leaf
from flaxformer.devices.sharding import Devices, shardings_of
from flaxformer.nn.formulations import chunks
from flaxformer.tasks import Copy
from flaxformer.tasks.batch import Batch
from flaxformer.training import LossTerm, Run, Training, ZLoss, start
from flaxformer.training.evaluation import score
from flaxformer.training.loss import loss
from flaxformer.training.step import backward, train_step

V, D, B, T = 37, 8, 6, 5


class Focal(LanguageModel):
    """Trained on (1 − p) · (−log p)."""

    by_token: ClassVar[bool] = True

    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        log_p = jnp.take_along_axis(jax.nn.log_softmax(output), targets[..., None], axis=-1)[..., 0]
        return (-(1 - jnp.exp(log_p)) * log_p * weights).sum(), weights.sum()


class Share(Focal):
    """The same, divided by a count that has a gradient."""

    by_token: ClassVar[bool] = True

    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        total, _ = super().training_loss(output, aux, targets, weights)
        return total, (jax.nn.logsumexp(output, axis=-1) * weights).sum()


class OfSequence(LanguageModel):
    """Trained on the square of the loss of each sequence, which is no sum over tokens."""

    def training_loss(self, output, aux, targets, weights, label_smoothing=None):
        log_p = jnp.take_along_axis(jax.nn.log_softmax(output), targets[..., None], axis=-1)[..., 0]
        return jnp.square((log_p * weights).sum(-1)).sum(), weights.sum()


class Penalty(LossTerm):
    """Mean squared logit."""

    weight: float = leaf(0.2)

    def of_outputs(self, output, targets, weights):
        return (jnp.square(output).mean(-1) * weights).sum(), 2 * weights.sum()


class Whole(LossTerm):
    """Mean squared logit, of all outputs at once."""

    def value(self, params, outcome, batch):
        return jnp.square(outcome.output).sum(), jnp.float32(outcome.output.size)


CASES = {
    "tied": (LanguageModel(tied=True), (), {}),
    "untied, bias, smoothing": (LanguageModel(bias=True), (), {"label_smoothing": 0.13}),
    "transform, scale, cap": (LanguageModel(transform="gelu", scale_exponent=0.5, logit_cap=2.0), (), {}),
    "narrow logits": (LanguageModel(tied=True, wide_logits=False), (), {}),
    "z-loss": (LanguageModel(tied=True), (ZLoss(weight=0.1),), {"label_smoothing": 0.1}),
    "own term": (LanguageModel(), (ZLoss(weight=0.1), Penalty()), {}),
    "term of all outputs": (LanguageModel(), (ZLoss(weight=0.1), Whole(weight=0.3)), {}),
    "own loss": (Focal(tied=True), (ZLoss(weight=0.1),), {}),
    "count with a gradient": (Share(), (), {}),
    "loss of a sequence": (OfSequence(), (), {}),
    "micro-batches": (LanguageModel(tied=True), (), {"micro_batches": 2}),
}
QUICK = ("z-loss", "own term")


def run_of(name, **training):
    head, terms, more = CASES[name]
    model = ModelConfig(
        vocabulary=V,
        layers=1,
        d_model=D,
        attention=Attention(heads=2),
        feed_forward=Dense(d_ff=7),
        head=head,
        norm_kind=LayerNorm(),
        inputs=Tokens(std=1.0),
    )
    task = Copy(symbols=V - 1, length=3, batch_size=B)
    return Run(model=model, task=task, loss_terms=terms, training=Training(**({"micro_batches": 1} | more | training)))


def batch_of(seed=0):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, V, (B, T + 1))
    weights = random.integers(0, 2, (B, T)) * random.uniform(0.5, 2, (B, T))
    valid = np.arange(T) < random.integers(2, T + 1, (B, 1))
    return Batch(
        inputs=jnp.asarray(tokens[:, :-1]),
        targets=jnp.asarray(tokens[:, 1:]),
        weights=jnp.asarray(weights * valid, jnp.float32),
        valid=jnp.asarray(valid),
    )


def computed(run, large, monkeypatch):
    """The loss of a step, its gradient, and the scores of an evaluation."""
    monkeypatch.setattr(chunks, "LARGE", large)
    state, batch = start(run), batch_of()

    def all_of(state, batch):
        params = jax.tree.map(lambda w: w + 0.1 * jnp.sin(jnp.arange(w.size)).reshape(w.shape), state.params)
        state = state.replace(params=params)
        evaluated = score(params, run, jax.tree.map(lambda x: x[None], batch))
        return backward(state, run, batch)[:2], evaluated

    return jax.jit(all_of, compiler_options={"xla_backend_optimization_level": 0})(state, batch)


def agree(found, expected, tolerance):
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(expected))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale), found, expected)


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
@pytest.mark.parametrize("large", [V, pytest.param(7 * V, marks=pytest.mark.slow)])
def test_chunks_change_neither_loss_nor_gradient_nor_scores(name, large, monkeypatch):
    run = run_of(name)
    agree(computed(run, large, monkeypatch), computed(run, 2**27, monkeypatch), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_chunks_in_bfloat16_differ_by_its_rounding(name, monkeypatch):
    run = run_of(name, precision="bfloat16")
    agree(computed(run, 7 * V, monkeypatch), computed(run, 2**27, monkeypatch), 2e-2)


@pytest.mark.parametrize(
    ("head", "is_split"),
    [
        (LanguageModel(), True),
        (LanguageModel(tied=True, transform="gelu"), True),
        (Classifier(classes=3), True),
        (Focal(), True),
        (OfSequence(), False),
    ],
)
def test_only_losses_of_single_tokens_are_split(head, is_split):
    assert head.can_split == is_split


def largest(text, width):
    """The largest array with an axis of this size, in a compiled program."""
    shapes = [[int(size) for size in found.split(",")] for found in re.findall(r"\w\d+\[([\d,]+)\]", text)]
    return max(int(np.prod(shape)) for shape in shapes if width in shape)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("of", ["step", "evaluation"])
def test_no_array_has_a_logit_per_token_and_id(of, monkeypatch):
    vocabulary, rows, length = 1009, 16, 32
    monkeypatch.setattr(chunks, "LARGE", 64 * vocabulary)
    run = run_of("tied").replace(model=run_of("tied").model.replace(vocabulary=vocabulary))
    state = jax.eval_shape(lambda: start(run))
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    batch = Batch(inputs=tokens, targets=tokens, weights=jax.ShapeDtypeStruct((rows, length), jnp.float32))
    functions = {
        "step": lambda state, batch: train_step(state, run, batch),
        "evaluation": lambda state, batch: score(state.params, run, jax.tree.map(lambda x: x[None], batch)),
    }
    compiled = jax.jit(functions[of]).lower(state, batch).compile()
    assert largest(compiled.as_text(), vocabulary) <= 64 * vocabulary
    assert compiled.memory_analysis().temp_size_in_bytes < rows * length * vocabulary * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "devices", [Devices(fsdp=2), Devices(data=2, fsdp=2), Devices(data=2, fsdp=2, tensor=2)], ids=str
)
def test_a_mesh_computes_the_same_loss_and_gradient(devices, monkeypatch):
    if devices.count > jax.device_count():
        pytest.skip(f"{devices.count} devices are wanted; there are {jax.device_count()}")
    monkeypatch.setattr(chunks, "LARGE", V)
    run, batch, mesh = run_of("z-loss"), batch_of(), devices.mesh()
    batch = jax.tree.map(lambda x: jnp.concatenate([x, x])[:8], batch)
    state = start(run)

    def both(params, batch):
        return jax.value_and_grad(lambda params: loss(params, run, batch, None)[0])(params)

    expected = jax.jit(both)(state.params, batch)
    with jax.set_mesh(mesh):
        found = jax.jit(both)(jax.device_put(state.params, shardings_of(state.params, mesh)), batch)
    agree(found, expected, 1e-6)
