"""Distillation: does a student learn more from the probabilities of a teacher than from the text alone?

    loss = −log p(y) + weight · τ² · KL(softmax(z_teacher / τ) ‖ softmax(z / τ)), as a mean over the scored targets

Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", arXiv:1503.02531, section 2.
Command: flaxformer train distillation.py --output runs/teacher
    then flaxformer run distillation.py
Cost: a teacher of 1.6 M weights and 15 runs of a student of 0.1 M; about ten minutes on 2 CPU cores, estimated.
"""

import dataclasses
import hashlib
from collections.abc import Iterator

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import flaxformer
from flaxformer import (
    AdamW,
    Attention,
    Batch,
    Claim,
    Dense,
    LossTerm,
    ModelConfig,
    Points,
    Run,
    Source,
    StandardLibrary,
    Study,
    Task,
    Training,
    leaf,
    part,
    static,
)
from flaxformer.model import Transformer, apply
from flaxformer.model.output import ModelOutput
from flaxformer.system.errors import UserError


class Distilled(Task):
    """A task of tokens whose training batches have the log-probabilities of a teacher; evaluation is the task's own.

    task: what is learned; batch size and evaluation set are those of this task.
    teacher: folder of a model with trained weights, as `flaxformer.load` reads it. A digest of the weights is part of
        the data's identity.
    """

    task: Task = part(StandardLibrary())
    teacher: str = static()

    @property
    def sized(self) -> Task:
        """The task with the batch size and the evaluation set of this one."""
        return self.task.replace(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Task)})

    @property
    def vocabulary(self) -> int:
        return self.task.vocabulary

    @property
    def sequence_length(self) -> int:
        return self.task.sequence_length

    @property
    def source_length(self) -> int:
        return self.task.source_length

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        yield from self.task.problems_with(model)

    def fingerprint(self) -> dict[str, object]:
        weights = hashlib.blake2b(digest_size=8)
        for weight in jax.tree.leaves(flaxformer.load(self.teacher).params):
            weights.update(np.asarray(weight).tobytes())
        return self.task.fingerprint() | {"teacher": weights.hexdigest()}

    def load(self) -> "DistilledSource":
        teacher, source = flaxformer.load(self.teacher), self.sized.load()
        if source.on_host:
            raise UserError(f"task.task is {self.task}, whose data are on the host; expected a smaller text")
        return DistilledSource(source, teacher.params, teacher.config)


class TaughtBatch(Batch):
    """A batch with the log-probabilities [*batch, T, V] of a teacher."""

    teacher: Float[Array, "*batch T V"] | None = None


class DistilledSource(Source):
    """Source of batches with the log-probabilities of a teacher, which is computed in every step."""

    source: Source
    teacher: Transformer
    config: ModelConfig = flax.struct.field(pytree_node=False)

    def batch(self, key: Array, step: int | Array) -> TaughtBatch:
        batch = self.source.batch(key, step)
        logits = apply(self.teacher, self.config, batch.inputs, **batch.arguments)
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return TaughtBatch(**fields, teacher=jax.nn.log_softmax(logits))

    def evaluation(self) -> Batch:
        return self.source.evaluation()

    def test(self) -> Batch | None:
        return self.source.test()


class Distillation(LossTerm):
    """τ² · KL(softmax(z_teacher / τ) ‖ softmax(z / τ)) per scored target; τ² keeps its gradient's size (section 2)."""

    weight: float = leaf(1.0)
    temperature: float = leaf(2.0, above=0)

    def value(self, params: Transformer, outcome: ModelOutput, batch: Batch) -> tuple[Array, Array]:
        if not isinstance(batch, TaughtBatch):
            raise UserError("loss_terms has Distillation; expected a task Distilled, which has a teacher")
        if batch.teacher.shape != outcome.output.shape:
            shapes = f"{batch.teacher.shape}, and those of the model {outcome.output.shape}"
            raise UserError(f"the logits of the teacher have the shape {shapes}; expected the same vocabulary")
        expected = jax.nn.log_softmax(batch.teacher / self.temperature)
        predicted = jax.nn.log_softmax(outcome.output / self.temperature)
        divergence = (jnp.exp(expected) * (expected - predicted)).sum(-1)
        return self.temperature**2 * (divergence * batch.weights).sum(), batch.weights.sum()


TEXT = StandardLibrary(length=64, batch_size=32)


def model(layers: int, width: int) -> ModelConfig:
    """Return a decoder of bytes."""
    return ModelConfig(
        vocabulary=TEXT.vocabulary,
        layers=layers,
        d_model=width,
        attention=Attention(heads=4),
        feed_forward=Dense(d_ff=4 * width),
    )


run = Run(
    model=model(layers=4, width=128),
    task=TEXT,
    optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
    training=Training(steps=1000, evaluate_every=250),
)
"""The teacher."""

TAUGHT = {"task": Distilled(task=TEXT, teacher="runs/teacher", batch_size=TEXT.batch_size)}
study = Study(
    name="distillation",
    question="Does a small model learn more from the probabilities of a larger one than from the text alone?",
    baseline=Run(
        model=model(layers=2, width=48),
        task=TEXT,
        optimizer=AdamW(learning_rate=5e-3, warmup_steps=30),
        training=Training(steps=300, evaluate_every=50),
    ),
    axes=[
        Points(
            "learns from",
            {
                "the text": {},
                "a teacher": TAUGHT | {"loss_terms": (Distillation(),)},
                "a teacher of temperature 1": TAUGHT | {"loss_terms": (Distillation(temperature=1.0),)},
            },
        )
    ],
    seeds=range(5),
    claims=[
        Claim("a teacher lowers the loss", lower={"learns from": "a teacher"}, than={"learns from": "the text"}),
        Claim(
            "a temperature of 2 is better than 1",
            lower={"learns from": "a teacher"},
            than={"learns from": "a teacher of temperature 1"},
        ),
    ],
    caveats=["The cost of the teacher, in training and in each step of its students, is not in the comparison."],
)
