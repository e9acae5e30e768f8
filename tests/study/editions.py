"""Versions of a study's file, the edits between them, and the numbers that a run has by its config and seed alone."""

import dataclasses
import hashlib
import json
import re
from typing import Any

import jax
import numpy as np
from study import faults

from flaxformer.core.canonical import canonical
from flaxformer.model import init
from flaxformer.runner.events import Progressed
from flaxformer.store.rows import Row

VALUES = {
    "optimizer.learning_rate": ("1e-3", "1e-2", "3e-3", "1e-1", "5e-324"),
    "model.norm": ("PRE", "POST"),
    "model.layers": ("1", "2"),
    "optimizer.weight_decay": ("0.0", "0.1"),
    "model.feed_forward": ("Dense(d_ff=11)", "Own(d_ff=11)"),
}
"""Values of each path that an axis may vary, as the file writes them."""
LABELS = ("low", "high", "1", "two", "baseline", "ünï 語", "a|b<c>", "x, y")
NAMES = ("rate", "depth", "pace")
TEXTS = ("the first is lower", "it *helps*", "<b>alike</b>")
METRIC_NAMES = ("validation_loss", "validation_accuracy", "score")


@dataclasses.dataclass(frozen=True)
class EditedAxis:
    """An axis: its name, its path, and pairs of a label and a value."""

    name: str
    path: str
    levels: tuple[tuple[str, str], ...]

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.levels]


@dataclasses.dataclass(frozen=True)
class EditedClaim:
    """A claim: its text, its form, and the labels that it compares."""

    text: str
    form: str
    first: tuple[tuple[str, str], ...]
    second: tuple[tuple[str, str], ...]
    by: float = 0.0

    def source(self) -> str:
        first, second = dict(self.first), dict(self.second)
        if self.form == "equal":
            return f"Claim({self.text!r}, equal={first}, to={second}, within={0.25 + self.by})"
        if self.form == "number":
            return f"Claim({self.text!r}, lower={first}, than={self.by})"
        if self.form == "gap":
            return f"Claim({self.text!r}, higher={{'quantity': 'gap'}}, than={self.by})"
        return f"Claim({self.text!r}, {self.form}={first}, than={second}, by={self.by})"


@dataclasses.dataclass(frozen=True)
class Edition:
    """A version of the file."""

    name: str = "tiny"
    question: str = "Does it run?"
    axes: tuple[EditedAxis, ...] = (
        EditedAxis("rate", "optimizer.learning_rate", (("low", "1e-3"), ("high", "1e-2"))),
        EditedAxis("norm", "model.norm", (("pre", "PRE"), ("post", "POST"))),
    )
    claims: tuple[EditedClaim, ...] = (EditedClaim(TEXTS[0], "lower", (("rate", "high"),), (("rate", "low"),)),)
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    metric: str = "validation_loss"
    combine: str = "product"
    steps: int = 6
    beta2: float = 0.999
    version: int = 0
    """Version of the file's own class and of `measure`."""
    measures: bool = False
    derives: int | None = None
    """Version of `derive`; None without one."""
    halves: bool = False
    keeps: bool = False

    def source(self) -> str:
        """The file."""
        levels = {axis.name: ", ".join(f"{label!r}: {value}" for label, value in axis.levels) for axis in self.axes}
        axes = ", ".join(f"Axis({axis.path!r}, {{{levels[axis.name]}}}, name={axis.name!r})" for axis in self.axes)
        claims = ", ".join(claim.source() for claim in self.claims)
        measure = "measure=measure, " if self.measures else ""
        derive = "derive=derive, " if self.derives is not None else ""
        halving = "halving=Halving(factor=2, first=3), " if self.halves else ""
        keep = "keep='final', " if self.keeps else ""
        return FILE.format(
            **dataclasses.asdict(self) | {"axes": axes, "claims": claims},
            options=measure + derive + halving + keep,
            weight=1.0 if self.derives is None else 1.0 + self.derives,
        )


FILE = '''"""A study."""

from flaxformer import POST, PRE, Attention, Dense, ModelConfig
from flaxformer.study import Axis, Claim, Halving, Study
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training


class Own(Dense):
    VERSION = {version}


def measure(params, run):
    return {{"score": {version}}}


def derive(rows):
    losses = [row["validation_loss"] for row in rows.values()]
    return {{"gap": {weight} * (losses[-1] - losses[0])}}


study = Study(
    name="{name}",
    question="{question}",
    baseline=Run(
        model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
        task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
        optimizer=AdamW(learning_rate=1e-3, beta2={beta2}),
        training=Training(steps={steps}, evaluate_every=3),
    ),
    axes=[{axes}],
    seeds={seeds},
    metric="{metric}",
    combine="{combine}",
    claims=[{claims}],
    {options}
)
'''


def configuration(run: Any) -> str:
    """Digest of a run's config without its seed and the module of the file's own class."""
    text = json.dumps({name: value for name, value in canonical(run).items() if name != "seed"}, sort_keys=True)
    text = re.sub(r'("kind": ")[^"]*\.', r"\1", text)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def number(configuration: str, seed: int, metric: str, version: int, until: int | None = None) -> float:
    """The metric of a run: a function of its config, its seed and the code that it uses."""
    return faults.number(f"{configuration} {seed} {metric} {version} {until}")


def version_of(run: Any, measures: Any) -> int:
    """Version of the user's code that a run depends on; -1 for none."""
    own = getattr(type(run.model.feed_forward), "VERSION", -1)
    return own if measures is None else int(measures(None, run)["score"])


_WEIGHTS: dict[str, Any] = {}


def _weights(run: Any) -> Any:
    """Stacked weights of one run."""
    key = configuration(run)
    if key not in _WEIGHTS:
        _WEIGHTS[key] = jax.tree.map(lambda leaf: np.asarray(leaf)[None], init(jax.random.key(0), run.model))
    return _WEIGHTS[key]


class Program(faults.Program):
    """Stand-in for `Program` whose results depend on config, seed and code, and not on names; `broken` runs fail."""

    broken: set[tuple[str, int]] = set()  # noqa: RUF012 (shared by design)

    def train(self, trials, stops, partial_run, weights, profile=None):
        rows = []
        for trial in trials:
            yield Progressed(self.group.name, 1, 2, 2)
            key, measure = configuration(trial.run), self.group.measure
            if (key, trial.seed) in self.broken:
                raise FloatingPointError(f"no luck with {trial.name}")
            version = version_of(trial.run, measure)
            names = ["validation_loss", "validation_accuracy", *(["score"] if measure else [])]
            metrics = {name: number(key, trial.seed, name, version, trial.until) for name in names}
            end = trial.until or trial.run.training.steps
            rows.append(
                Row(
                    trial=trial.name,
                    group=self.group.name,
                    seed=trial.seed,
                    status="done",
                    evaluated_at=[0, end],
                    seconds=0.1,
                    labels=trial.arm.labels,
                    metrics=metrics | {f"initial_{name}": 9.0 + value for name, value in metrics.items()},
                    curves={name: [9.0 + value, value] for name, value in metrics.items()} | {"train_loss": [1.0]},
                )
            )
            if weights is not None:
                values = {name: np.asarray([value]) for name, value in metrics.items()}
                weights.save(end, values, lambda run=trial.run: _weights(run))
                weights.wait()
        return rows
