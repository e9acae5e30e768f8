"""User-defined inputs and heads, derived from the base classes: training, evaluation and decoding."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from flaxformer.components import Attention, Classifier, Head, Inputs
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import static
from flaxformer.model import apply, generate, init
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy, Digits, ScaledIndex
from flaxformer.training import Run, Training, evaluate, start, train_step


class SumOfHalves(Inputs):
    """Embedding of token ids as two digits in base 16, with one table per digit."""

    class Weights(Parameters):
        high: Float[Array, "half d_embedding"] = param(std=1.0)
        low: Float[Array, "half d_embedding"] = param(std=1.0)

    reads: ClassVar[str] = "tokens"
    half: int = static(16)

    def apply(self, weights, inputs, token_types, table, sizes):
        return weights.high[inputs // self.half] + weights.low[inputs % self.half]


class Columns(Inputs):
    """Images whose columns are the tokens."""

    class Weights(Parameters):
        matrix: Float[Array, "height d_embedding"] = param(fan_in="height")

    reads: ClassVar[str] = "images"
    height: int = static(8)
    count: ClassVar[int] = 8

    def apply(self, weights, inputs, token_types, table, sizes):
        return jnp.swapaxes(inputs[..., 0], -1, -2) @ weights.matrix


class AnyVectors(Inputs):
    """Sum of vectors of any width."""

    class Weights(Parameters):
        row: Float[Array, "d_embedding"] = param(std=1.0)

    def apply(self, weights, inputs, token_types, table, sizes):
        return jnp.einsum("...i,d->...d", inputs, weights.row)


class Hinge(Head):
    """Scores per token, trained by a hinge loss."""

    class Weights(Parameters):
        matrix: Float[Array, "d_model outputs"] = param(fan_in="d_model")

    predicts: ClassVar[str] = "tokens"
    loss_name: ClassVar[str] = "hinge"

    def outputs(self, vocabulary):
        return vocabulary

    def apply(self, weights, x, table, context, norm):
        return (x @ weights.matrix).astype(jnp.float32)

    def loss(self, output, targets, weights, label_smoothing=None):
        own = jnp.take_along_axis(output, targets[..., None], axis=-1)
        losses = jnp.maximum(0, 1 + output - own).mean(-1)
        return (losses * weights).sum(), weights.sum()

    def accuracy(self, output, targets, weights):
        return ((output.argmax(-1) == targets) * weights).sum(), weights.sum()


MODEL = ModelConfig(layers=1, d_model=16, attention=Attention(heads=2))
SMALL = {"batch_size": 2, "evaluation_batches": 1}


@pytest.mark.parametrize("run", [
    Run(model=MODEL.replace(inputs=SumOfHalves(), head=Hinge()), task=Copy(symbols=5, length=3, **SMALL)),
    Run(
        model=MODEL.replace(inputs=Columns(), head=Classifier(classes=10), mask_pattern="bidirectional"),
        task=Digits(**SMALL),
    ),
    Run(model=MODEL.replace(inputs=AnyVectors(), head=ScaledIndex(length=3).head), task=ScaledIndex(length=3, **SMALL)),
], ids=["tokens", "images", "vectors"])  # fmt: skip
def test_a_task_trains_and_evaluates_user_defined_inputs_and_heads(run):
    run = run.replace(training=Training(steps=1))
    source, state = run.task.load(), start(run)
    state, metrics = jax.jit(train_step)(state, run, source.batch(jax.random.key(0), 0))
    assert np.isfinite(metrics["loss"])
    found = jax.jit(evaluate)(state.params, run, source)
    assert np.isfinite(found["validation_loss"])
    assert ("validation_accuracy" in found) == run.model.head.has_accuracy


@pytest.mark.slow
def test_decoding_chooses_the_highest_score_of_a_user_defined_head():
    config = MODEL.replace(inputs=SumOfHalves(), head=Hinge())
    params = init(jax.random.key(0), config)
    prompt = np.array([[3, 200, 7], [0, 9, 4]])
    valid = np.array([[True, True, True], [False, True, True]])
    said = generate(params, config, prompt, steps=4, valid=valid).tokens
    for row in range(2):
        tokens = prompt[row][valid[row]]
        for token in said[row]:
            assert int(apply(params, config, tokens[None])[0, -1].argmax()) == token
            tokens = np.append(tokens, token)


@pytest.mark.parametrize(("model", "task", "message"), [
    ({"inputs": Columns()}, Copy(symbols=5, length=3), "model.inputs is Columns"),
    ({"inputs": SumOfHalves(), "head": Hinge()}, ScaledIndex(length=3), "model.inputs is SumOfHalves"),
    ({"inputs": AnyVectors(), "head": Hinge()}, ScaledIndex(length=3), "model.head is Hinge"),
    ({"inputs": Columns(), "head": Hinge()}, Digits(), "model.head is Hinge"),
])  # fmt: skip
def test_inputs_and_heads_that_do_not_fit_a_task_are_rejected(model, task, message):
    with pytest.raises(UserError, match=message):
        Run(model=MODEL.replace(**model), task=task)
