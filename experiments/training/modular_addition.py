"""Grokking: addition modulo 97 is memorised long before it generalises.

Half of the 9,409 sums are in the training set, and the others are the validation set. `run` is one training run, as in
every recipe; `study` is the same run over several seeds, which also measures the accuracy on the training sums.

Data: none; the table follows from the modulus, and split_seed determines the training sums.
Command: flaxformer run experiments/training/modular_addition.py
    (flaxformer train with the same file trains once, and logs the validation accuracy.)
Cost: 2 min per seed on one CPU core, 4 seeds; 421,888 weights, 4,000 steps of 512 sums.
Published: 100 % of the training sums after 10² to 10³ steps, and of the others after 10³ to 10⁵ (Power et al. 2022,
    figure 1). Expected: 99 % of the others takes at least 3 times as many steps as 99 % of the training sums.
Measured: 99 % of the training sums after 300 steps, and of the others after 3,200, 2,900, 3,400 and 2,900 (seeds 0 to
3): 10.3
    times as many, 95 % interval 9.0 to 11.6. Both accuracies fall for an evaluation every few hundred steps, and
    recover: on seed 2 the last evaluation is such a fall, to 51 % of the others.
Deviations: batches of 512 are drawn with replacement; a full evaluation every 50 steps, which is the
    resolution of the steps above; weight decay excludes embeddings; layers are pre-norm.
"""

from collections.abc import Mapping
from typing import Any

import jax

from flaxformer import AdamW, Attention, Claim, Constant, ModelConfig, ModularAddition, Run, Study, Training
from flaxformer.nn.losses import count_correct
from flaxformer.training.loss import forward

run = Run(
    model=ModelConfig(vocabulary=98, layers=2, d_model=128, attention=Attention(heads=4)),
    task=ModularAddition(modulus=97, fraction=0.5, batch_size=512, evaluation_batches=10),
    optimizer=AdamW(learning_rate=1e-3, warmup_steps=10, decay=Constant(), beta2=0.98, weight_decay=1.0),
    training=Training(steps=4000, evaluate_every=50),
)


def known(params: Any, run: Run) -> dict[str, jax.Array]:
    """Return the accuracy on the training sums."""
    source: Any = run.task.load()
    shown = source.train
    right, count = count_correct(forward(params, run, shown).output, shown.targets, shown.weights)
    return {"accuracy_on_shown": right / count}


def delay(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the step of the first evaluation with 99 % accuracy, on the training sums and on the others."""
    (row,) = rows.values()

    def reached(curve: str) -> int:
        right = (step for step, share in zip(row["evaluated_at"], row[curve], strict=True) if share >= 0.99)
        return next(right, row["evaluated_at"][-1])

    shown, unseen = reached("accuracy_on_shown_curve"), reached("validation_accuracy_curve")
    return {"steps to 99 % of the shown": shown, "steps to 99 % of the others": unseen, "ratio": unseen / shown}


study = Study(
    name="modular_addition",
    question="How many times the steps that the shown sums take do the others take?",
    baseline=run,
    seeds=range(4),
    metric="validation_accuracy",
    measure=known,
    derive=delay,
    claims=[Claim("three times as many at least", higher={"quantity": "ratio"}, than=3)],
    caveats=["One split of the table, one share of it shown: with less of it shown the delay grows."],
)
