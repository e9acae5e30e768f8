"""Law of the initial loss: it is close to that of a uniform prediction."""

import math

import jax
from jaxtyping import Array

from flaxformer.laws.calls import random_key
from flaxformer.laws.law import OK, Finding, law, not_applicable, violation
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.model import Transformer
from flaxformer.tasks.batch import Batch
from flaxformer.training import Run
from flaxformer.training.loss import forward

LARGEST_GAP = 0.6
"""Largest difference, in nats, of the initial loss from that of a uniform prediction; logits of variance 1 give ½."""


@law(
    "start",
    f"the loss at initialisation is within {LARGEST_GAP} nats of ln of the number of outputs",
    "choose fan_in, init or std of the weights so that the logits have a variance of at most about 1",
)
def start(subject: Subject) -> Finding:
    """Evaluate the initial loss, whose standard error is at most about 1 nat / √targets."""
    head = subject.config.head
    if head.loss_name != "cross_entropy":
        return not_applicable("the loss is not a cross-entropy")
    state, batch = subject.initial_state, subject.training_batch
    with jax.enable_x64(False):
        key = random_key() if subject.mixes_batch else None  # running statistics are still at their initial values
        total, count = _summed_loss(state.params, subject.run, batch, key)
    initial_loss, outputs = float(total / count), head.outputs(subject.config.vocabulary)
    words = f"the initial loss is {initial_loss:.2f} nats; ln {outputs} is {math.log(outputs):.2f}"
    return OK if abs(initial_loss - math.log(outputs)) <= LARGEST_GAP + 2 / float(count) ** 0.5 else violation(words)


@fast_jit
def _summed_loss(weights: Transformer, run: Run, batch: Batch, key: Array | None) -> tuple[Array, Array]:
    return run.model.head.loss(forward(weights, run, batch, key).output, batch.targets, batch.weights)
