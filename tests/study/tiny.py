"""A study that trains in seconds: 12 runs of 6 steps in 2 compiled programs, a claim of every form; and helpers."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from flaxformer.components import POST, PRE, Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.runner.events import Event
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import derive_numbers, plan_of, run_plan
from flaxformer.store.declaration import FORMAT, Declaration
from flaxformer.store.declarations import declare
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim, Study, Trial
from flaxformer.study.metrics import METRICS
from flaxformer.study.plan import declaration
from flaxformer.system.user_code.changes import OnCodeChange
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training

BASELINE = Run(
    model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
    task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
    optimizer=AdamW(learning_rate=1e-3),
    training=Training(steps=6, evaluate_every=3),
)
NORM = Axis("model.norm", {"pre": PRE, "post": POST})
RATE = Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate")
LOWER = Claim("high is better than low", lower={"rate": "high"}, than={"rate": "low"})
INTERACTION = Claim(
    "high helps pre more than post",
    lower={"rate": "high"},
    than={"rate": "low"},
    where={"norm": "pre"},
    more_than_where={"norm": "post"},
)
EQUAL = Claim("pre and post are alike", equal={"norm": "pre"}, to={"norm": "post"}, within=0.5)

INCIDENTAL = {"seconds", "tokens_per_second", "device", "group_size", "chunk_steps", "declaration", "memory_bytes"}
"""Columns that say how and when a run went on this machine; all others are its result."""


def tiny(**changes) -> Study:
    """The study, with other fields where the caller says so."""
    fields = {
        "name": "tiny",
        "question": "Does it run?",
        "baseline": BASELINE,
        "axes": (NORM, RATE),
        "seeds": range(3),
        "claims": (LOWER, INTERACTION, EQUAL),
        "caveats": ("It is tiny.",),
    }
    return Study(**(fields | changes))


def run(study: Study, execution: Execution, only: Collection[str] | None = None, **settings) -> Iterator[Event]:
    """Train what a study misses, by an execution with other settings."""
    execution = dataclasses.replace(execution, **settings)
    return run_plan(plan_of(study, execution), execution, only)


def results(rows: dict[str, Row]) -> dict[str, dict]:
    """Rows without their incidental columns: equal results, equal runs."""
    return {trial: {name: row[name] for name in row if name not in INCIDENTAL} for trial, row in rows.items()}


def fill(
    root: Path,
    study: Study,
    loss: Callable[[Trial], float],
    on_code_change: OnCodeChange = "refuse",
    missing_only: bool = False,
) -> Store:
    """A folder of finished runs with these losses, also as the study's own metric; nothing is trained.

    Args:
      missing_only: runs that have a result keep it.
    """
    store = Store(root)
    with store.locked():
        declared = declare(store, declaration(study), on_code_change)
        fingerprints = declared.fingerprints
        known = store.rows().keys()
        for trial in study.trials():
            value = loss(trial)
            own = {} if study.metric in METRICS else {study.metric: value, f"initial_{study.metric}": value + 7.0}
            row = Row(
                trial=trial.name,
                group="all",
                seed=trial.seed,
                status="done",
                fingerprint=fingerprints[trial.name],
                declaration=declared.declaration,
                evaluated_at=[0, 6],
                labels=trial.arm.labels,
                metrics={
                    "validation_loss": value,
                    "validation_accuracy": 0.5,
                    "initial_validation_loss": 9.0,
                    "initial_validation_accuracy": 0.0,
                }
                | own,
                curves={"validation_loss": [9.0, loss(trial)], "validation_accuracy": [0.0, 0.5]},
            )
            if not (missing_only and trial.name in known):
                store.append("all", row)
        store.finish("all")
        if study.derive is not None:
            about = {"measured_by": declared.measured_by, "declaration": declared.declaration}
            rows = [about | row for row in derive_numbers(study, store.rows())]
            store.replace_measurements(rows, declared.measured_by)
    return store


def cache_folder(factory) -> Path:
    """A folder for compiled programs that lives as long as the test session, for all of its workers."""
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"


@contextlib.contextmanager
def kept_programs(folder: Path) -> Iterator[None]:
    """Read compiled programs from the folder where they are there, so that equal programs are compiled once."""
    changes = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0}
    before = {name: getattr(jax.config, name) for name in changes}
    for settings in (changes, before):
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if settings is changes:
            yield


FILE = '''"""The tiny study as a file, for the command line."""

from flaxformer import POST, PRE, Attention, Dense, ModelConfig
from flaxformer.study import Axis, Claim, Study
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training

study = Study(
    name="tiny",
    question="Does it run?",
    baseline=Run(
        model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
        task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
        optimizer=AdamW(learning_rate=1e-3),
        training=Training(steps=6, evaluate_every=3),
    ),
    axes=[
        Axis("model.norm", {"pre": PRE, "post": POST}),
        Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate"),
    ],
    seeds=range(3),
    claims=[
        Claim("high is better than low", lower={"rate": "high"}, than={"rate": "low"}),
        Claim(
            "high helps pre more than post",
            lower={"rate": "high"}, than={"rate": "low"}, where={"norm": "pre"}, more_than_where={"norm": "post"},
        ),
        Claim("pre and post are alike", equal={"norm": "pre"}, to={"norm": "post"}, within=0.5),
    ],
    caveats=["It is tiny."],
)
'''


def bare_declaration(**fields):
    """A declaration with these fields alone."""
    required = {"format": FORMAT, "kind": "study", "name": "s", "question": "q", "unit": "", "seeds": (0,)}
    return Declaration(**required | {"metric": "validation_loss"} | fields)
