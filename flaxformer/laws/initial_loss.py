"""Law of the start of training: the first loss is about that of a uniform guess."""

import math
from typing import Any

import jax

from flaxformer.laws.law import OK, Finding, law, not_applicable, violated
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject, random_key
from flaxformer.training import Run
from flaxformer.training.step import forward

LARGEST_GAP = 0.6
"""In nats, between the first loss and that of a uniform guess: logits of variance 1 make it ½."""


@law("start", f"the loss at initialisation is within {LARGEST_GAP} nats of ln of the number of outputs")
def start(subject: Subject) -> Finding:
    """Evaluate the first loss, whose standard error is at most about 1 nat / √targets."""
    head = subject.config.head
    if head.loss_name != "cross_entropy":
        return not_applicable("the loss is not a cross-entropy")
    state, batch = subject.started, subject.training_batch
    with jax.enable_x64(False):
        key = random_key() if subject.mixes_batch else None  # in evaluation, its running statistics have seen nothing
        total, count = _evaluated(state.params, subject.run, batch, key)
    found, outputs = float(total / count), head.outputs(subject.config.vocabulary)
    words = f"the first loss is {found:.2f} nats; ln {outputs} is {math.log(outputs):.2f}"
    return OK if abs(found - math.log(outputs)) <= LARGEST_GAP + 2 / float(count) ** 0.5 else violated(words)


@fast_jit
def _evaluated(weights: Any, run: Run, batch: Any, key: Any) -> Any:
    return run.model.head.loss(forward(weights, run, batch, key).output, batch.targets, batch.weights)
