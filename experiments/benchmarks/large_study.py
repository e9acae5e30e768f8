"""Study of many trials for the benchmark `folders`: 2 norms × 10 decays × rates of a tiny model, at many seeds.

`python large_study.py declare DIR ARMS SEEDS` declares it in an output folder, by the code of any version of the
package; `fill` adds invented results of all trials. 1 in 100 diverged, and 1 in 1,000 failed.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from flaxformer import POST, PRE, AdamW, Attention, Axis, Claim, Copy, Dense, ModelConfig, Run, Study, Training
from flaxformer.store.declaration import DeclaredTrial
from flaxformer.store.declarations import declare
from flaxformer.store.records import write_table
from flaxformer.store.store import Store
from flaxformer.study.plan import declaration

CURVE = list(range(0, 101, 5))
STEPS = 100


def study_of(arms: int, seeds: int) -> Study:
    """Return a study of that many arms, rounded up to a multiple of 20, at that many seeds."""
    rates = range(-(-arms // 20))
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
            Axis("optimizer.weight_decay", {f"{i}": 1e-3 * (1 + i) for i in range(10)}, name="decay"),
        ],
        seeds=range(seeds),
        claims=[
            Claim("post is higher", lower={"norm": "pre"}, than={"norm": "post"}, where={"rate": "0", "decay": "0"})
        ],
    )


def invented(trials: list[DeclaredTrial], drawn: np.random.Generator) -> pl.DataFrame:
    """Results with random numbers of these declared trials of one program."""
    n, is_diverged, is_failed = len(trials), drawn.random(len(trials)) < 0.01, drawn.random(len(trials)) < 0.001
    loss = drawn.random(n)
    columns: dict[str, Any] = {name: [getattr(trial, name) for trial in trials] for name in ("trial", "group", "seed")}
    columns |= {name: [trial.labels[name] for trial in trials] for name in trials[0].labels}
    columns |= {"fingerprint": [trial.fingerprint for trial in trials]}
    for name, value in (("validation_loss", loss), ("validation_accuracy", np.full(n, 0.5))):
        columns |= {name: value, f"initial_{name}": np.full(n, 9.0), f"{name}_curve": value[:, None] + np.array(CURVE)}
    columns |= {"train_loss_curve": drawn.random((n, STEPS)), "seconds": np.full(n, 0.1)}
    table = pl.DataFrame(columns).with_columns(
        pl.selectors.array().arr.to_list(),
        status=pl.when(pl.Series(is_failed))
        .then(pl.lit("failed"))
        .when(pl.Series(is_diverged))
        .then(pl.lit("diverged"))
        .otherwise(pl.lit("done")),
        diverged_at=pl.when(pl.Series(is_diverged & ~is_failed)).then(3),
        evaluated_at=pl.lit(CURVE, dtype=pl.List(pl.Int64)),
        tokens_per_second=9.0,
        group_size=1,
        chunk_steps=5,
        device=pl.lit("cpu:0"),
        cause=pl.when(pl.Series(is_failed)).then(pl.lit("ValueError: invented")),
        error=pl.when(pl.Series(is_failed)).then(pl.lit("Traceback: invented")),
    )
    numbers = pl.selectors.matches("^(initial_|validation_|train_|seconds|tokens_)")
    return table.with_columns(pl.when(pl.col("status") != "failed").then(numbers))


def declare_in(folder: Path, study: Study) -> None:
    """Declare a study in a folder."""
    store = Store(folder)
    with store.locked():
        declare(store, declaration(study))


def fill(folder: Path) -> None:
    """Add finished runs with random numbers to the folder of a declared study."""
    store, drawn = Store(folder), np.random.default_rng(0)
    groups: dict[str, list[DeclaredTrial]] = {}
    for trial in store.declaration.trials:
        groups.setdefault(trial.group, []).append(trial)
    with store.locked():
        for name, trials in groups.items():
            write_table(store.groups / f"{name}.parquet", invented(trials, drawn))


if __name__ == "__main__":
    part, place, *size = sys.argv[1:]
    if part == "declare":
        declare_in(Path(place), study_of(*map(int, size)))
    else:
        fill(Path(place))
