"""Study of many trials for the benchmark `folders`: 2 norms × rates × 20 decays × 5 seeds of a tiny model.

`python large_study.py DIR TRIALS` fills an output folder with invented results of that many trials.
"""

import random
import sys
from pathlib import Path

from flaxformer.config import POST, PRE, Attention, Dense, ModelConfig
from flaxformer.store.declarations import declare
from flaxformer.store.records import write_table
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim, Study
from flaxformer.study.plan import declaration
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training

CURVE = list(range(0, 101, 5))


def study_of(trials: int) -> Study:
    """Return a study of that many trials, rounded up to a multiple of 200."""
    rates = range(-(-trials // 200))
    return Study(
        name="large",
        question="How long do its commands take?",
        baseline=Run(
            model=ModelConfig(
                vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)
            ),
            task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
            optimizer=AdamW(learning_rate=1e-3),
            training=Training(steps=6, evaluate_every=3),
        ),
        axes=[
            Axis("model.norm", {"pre": PRE, "post": POST}),
            Axis("optimizer.learning_rate", {f"{i}": 1e-3 * (1 + i) for i in rates}, name="rate"),
            Axis("optimizer.weight_decay", {f"{i}": 1e-3 * (1 + i) for i in range(20)}, name="decay"),
        ],
        seeds=range(5),
        claims=[
            Claim("post is higher", lower={"norm": "pre"}, than={"norm": "post"}, where={"rate": "0", "decay": "0"})
        ],
    )


def fill(folder: Path, study: Study) -> None:
    """A folder of finished runs with random numbers."""
    store, declared, drawn = Store(folder), declaration(study), random.Random(0)
    groups: dict[str, list[dict[str, object]]] = {}
    for trial, known in zip(study.trials(), declared["trials"], strict=True):
        loss = drawn.random()
        row = {"trial": trial.name, "group": known["group"], "seed": trial.seed} | trial.arm.labels
        row |= {"status": "done", "diverged_at": None, "fingerprint": known["fingerprint"], "evaluated_at": CURVE}
        for name, value in (("validation_loss", loss), ("validation_accuracy", 0.5)):
            row |= {name: value, f"initial_{name}": 9.0, f"{name}_curve": [value + step for step in CURVE]}
        row |= {"train_loss_curve": [drawn.random() for _ in range(100)], "seconds": 0.1, "tokens_per_second": 9.0}
        groups.setdefault(known["group"], []).append(row | {"group_size": 1, "chunk_steps": 5, "device": "cpu:0"})
    with store.locked():
        declare(store, declared)
        for name, rows in groups.items():
            write_table(store.groups / f"{name}.parquet", rows)


if __name__ == "__main__":
    fill(Path(sys.argv[1]), study_of(int(sys.argv[2])))
