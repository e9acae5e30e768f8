"""Declaring a study: a baseline, the axes that vary around it, the seeds, and the claims to be judged."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from flaxformer.struct import UserError, canonical_text, did_you_mean, get_at, replace_at
from flaxformer.study.claim import QUANTITY, Claim, Contrast, Labels
from flaxformer.study.halving import Halving
from flaxformer.training.run import Run

RESERVED = re.compile(
    f"{QUANTITY}|trial|group|seed|status|error|cause|fingerprint|diverged_at|stopped_at|evaluated_at|seconds"
    "|tokens_per_second|group_size|chunk_steps|device|(validation|initial|train)_.*"
)
"""Column names of the results, which no axis may take."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """One thing that varies: `Axis("optimizer.warmup_steps", {"none": 0, "100": 100}, name="warmup")`.

    `path` names a field of the `Run`, or several that take the same value, such as
    ("model.norm", "model.encoder.norm"); `levels` gives each value its label. The name is the first path's last part
    by default.
    """

    path: str | Sequence[str]
    levels: Mapping[str, Any]
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.paths[0].rpartition(".")[2])
        object.__setattr__(self, "levels", dict(self.levels))
        if not self.levels:
            raise UserError(f"axis '{self.name}' has no levels; expected at least one label and value")
        for label in self.levels:
            if not isinstance(label, str) or not label or set(label) & set(",="):
                raise UserError(f"axis '{self.name}' has the label {label!r}; expected text without ',' and '='")
        if RESERVED.fullmatch(self.name) or set(self.name) & set(",="):
            raise UserError(f"axis name '{self.name}' is taken by a column of the results; give it another with name=")

    @property
    def paths(self) -> tuple[str, ...]:
        """The fields that it changes."""
        return (self.path,) if isinstance(self.path, str) else tuple(self.path)

    def changes(self, label: str) -> dict[str, Any]:
        """The values at its paths at one level."""
        return dict.fromkeys(self.paths, self.levels[label])

    def baseline_label(self, baseline: Run) -> str | None:
        """The label whose value the baseline has."""

        def values(run: Run) -> list[str]:
            return [canonical_text(get_at(run, path)) for path in self.paths]

        own = values(baseline)
        for label in self.levels:
            if values(replace_at(baseline, self.changes(label))) == own:
                return label
        return None


@dataclasses.dataclass(frozen=True)
class Arm:
    """One combination of levels."""

    labels: Labels
    run: Run

    @property
    def name(self) -> str:
        """Readable and unique in the study, such as "norm=pre,warmup=none"."""
        return ",".join(f"{axis}={label}" for axis, label in self.labels.items()) or "baseline"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of the study: an arm and a seed."""

    arm: Arm
    seed: int
    until: int | None = None
    """The rung of a halving to which it is trained; None is the end."""

    @property
    def name(self) -> str:
        """Readable and unique in the study."""
        return f"{self.arm.name},seed={self.seed}"

    @property
    def run(self) -> Run:
        """The arm's run at this seed."""
        return replace_at(self.arm.run, {"seed": self.seed})


METRICS = ("validation_loss", "validation_accuracy")
"""Numbers of every evaluation; accuracy only where there are classes."""
Measure = Callable[[Any, Run], Mapping[str, Any]]
"""From a model's weights and its run to named numbers; traced."""
Derive = Callable[[Mapping[str, Mapping[str, Any]]], Mapping[str, Any]]
"""From one seed's finished rows, by the name of their arm, to named numbers."""


def check_name(name: str) -> None:
    """Refuse what cannot name a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise UserError(f"study name is '{name}'; expected letters, digits, '_', '-' and '.' (it names a folder)")


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that repeat or are none."""
    if not seeds or len(set(seeds)) < len(seeds) or not all(isinstance(s, int) and 0 <= s < 2**31 for s in seeds):
        raise UserError(f"seeds are {seeds}; expected at least one, all different, whole numbers from 0 to 2³¹ − 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A question that training answers: what to vary, over which seeds, what to measure, and what is claimed.

    Args:
      name: the name of its folder of results.
      question: one sentence; the first line of the report.
      baseline: the run that everything is compared with.
      axes: what varies. `combine` says how: "product" (every combination), "zip" (level by level, in step), or
        "one-factor" (the baseline, and every level alone).
      seeds: every arm gets the same ones, so that arms are compared seed by seed.
      metric: the number that arms are compared by: "validation_loss", "validation_accuracy", or one of `measure`'s.
      claims: judged together, with Holm's correction.
      measure: further numbers of a model, as `measure(params, run)`, a traced function; taken at every evaluation.
      derive: numbers that need several runs, from the finished rows of one seed by the name of their arm (such as
        "norm=pre,warmup=none"); a claim calls one {"quantity": NAME}.
      metric_unit: what the metric counts, where `measure` gives it.
      halving: stop the worst arms early.
      caveats: what the study does not show; the report says so.
      file: the file that declares it, set when it is loaded; code that it runs on import counts as the study's.
    """

    name: str
    question: str
    baseline: Run
    axes: Sequence[Axis] = ()
    seeds: Sequence[int] = range(5)
    combine: Literal["product", "zip", "one-factor"] = "product"
    metric: str = "validation_loss"
    claims: Sequence[Claim] = ()
    caveats: Sequence[str] = ()
    measure: Measure | None = None
    derive: Derive | None = None
    metric_unit: str = ""
    halving: Halving | None = None
    file: Path | None = None

    def __post_init__(self) -> None:
        for name in ("axes", "seeds", "claims", "caveats"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_name(self.name)
        check_seeds(self.seeds)
        if self.combine not in COMBINATIONS:
            raise UserError(f"combine is '{self.combine}'{did_you_mean(self.combine, list(COMBINATIONS))}")
        if self.metric not in METRICS and self.measure is None:
            raise UserError(f"metric is '{self.metric}'; expected {' or '.join(METRICS)}, or a number of measure's")
        if self.metric == "validation_accuracy" and not self.baseline.model.head.has_accuracy:
            kind = type(self.baseline.model.head).__name__
            raise UserError(f"metric is 'validation_accuracy', which {kind} has not; expected validation_loss")
        names = [axis.name for axis in self.axes]
        if len(set(names)) < len(names):
            raise UserError(f"axes are named {names}; expected different names (give one with name=)")
        if self.halving is not None:
            for arm in self.arms():
                self.halving.check(arm.run.training.steps, arm.run.training.interval)
        self.trials()
        self.contrasts()

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        if self.metric not in METRICS:
            return self.metric_unit
        if self.metric == "validation_accuracy":
            return "of accuracy"
        loss = self.baseline.model.head.loss_name
        return "nats" if loss == "cross_entropy" else f"of {str(loss).replace('_', ' ')}"

    def arms(self) -> list[Arm]:
        """Every combination of levels that the study declares, once."""
        return list(self._arms)

    @functools.cached_property
    def _arms(self) -> list[Arm]:
        arms: list[Arm] = []
        recipes: dict[str, str] = {}
        for labels in COMBINATIONS[self.combine](self.axes, self.baseline):
            changes: dict[str, Any] = {}
            for axis in self.axes:
                changes |= axis.changes(labels[axis.name]) if labels[axis.name] in axis.levels else {}
            arm = Arm(labels, replace_at(self.baseline, changes))
            twin = recipes.setdefault(canonical_text(arm.run), arm.name)
            if twin != arm.name:
                raise UserError(f"arms '{twin}' and '{arm.name}' are the same run; expected every level to change it")
            arms.append(arm)
        return arms

    def trials(self) -> list[Trial]:
        """Every arm at every seed."""
        return [Trial(arm, seed) for arm in self.arms() for seed in self.seeds]

    def baseline_label(self, axis: Axis) -> str | None:
        """The label of the baseline on an axis; "baseline" where one-factor arms have a value that no level has."""
        return self._baseline_labels[axis.name] or ("baseline" if self.combine == "one-factor" else None)

    @functools.cached_property
    def _baseline_labels(self) -> dict[str, str | None]:
        return {axis.name: axis.baseline_label(self.baseline) for axis in self.axes}

    def labels(self, axis: Axis) -> list[str]:
        """Every label that arms have on an axis, the baseline's own first where no level has it."""
        own = self.baseline_label(axis)
        return [*([own] if own and own not in axis.levels else []), *axis.levels]

    def contrasts(self) -> list[Contrast]:
        """Each claim's weights on arms, with every axis named; refuses claims about arms that do not exist."""
        known = [arm.labels for arm in self.arms()] if self.claims else []
        rows = []
        for claim in self.claims:
            rows.append(claim.contrast(functools.partial(self._complete, who=f"claim '{claim.text}'")))
            arms = [labels for _, labels in rows[-1].terms]
            for labels in arms:
                if labels not in known and QUANTITY not in labels:
                    raise UserError(f"claim '{claim.text}' is about {labels}, which this study does not run")
                if QUANTITY in labels and self.derive is None:
                    raise UserError(f"claim '{claim.text}' is about {labels}, and the study has no derive to give it")
                if arms.count(labels) > 1:
                    raise UserError(f"claim '{claim.text}' compares {labels} with itself; expected different arms")
        return rows

    def _complete(self, labels: Labels, who: str) -> Labels:
        """Labels for every axis: those given, and the baseline's for the rest."""
        axes = {axis.name: axis for axis in self.axes}
        for name, label in labels.items():
            if name not in axes:
                raise UserError(f"{who} names axis '{name}'{did_you_mean(name, list(axes))}")
            if label not in self.labels(axes[name]):
                raise UserError(f"{who} names {name} '{label}'{did_you_mean(label, self.labels(axes[name]))}")
        full = {name: labels.get(name, self.baseline_label(axis)) for name, axis in axes.items()}
        if missing := [name for name, label in full.items() if label is None]:
            raise UserError(f"{who} does not say which {missing[0]}, and the baseline's is not among its levels")
        return full  # type: ignore[return-value]


def _product(axes: Sequence[Axis], baseline: Run) -> list[Labels]:
    names = [axis.name for axis in axes]
    return [dict(zip(names, labels, strict=True)) for labels in itertools.product(*(axis.levels for axis in axes))]


def _zip(axes: Sequence[Axis], baseline: Run) -> list[Labels]:
    sizes = {axis.name: len(axis.levels) for axis in axes}
    if len(set(sizes.values())) > 1:
        raise UserError(f"combine is 'zip' and the axes have {sizes} levels; expected as many on each")
    names = [axis.name for axis in axes]
    return [dict(zip(names, labels, strict=True)) for labels in zip(*(axis.levels for axis in axes), strict=True)]


def _one_factor(axes: Sequence[Axis], baseline: Run) -> list[Labels]:
    base = {axis.name: axis.baseline_label(baseline) or "baseline" for axis in axes}
    changed = [base | {axis.name: label} for axis in axes for label in axis.levels]
    return [base, *(labels for labels in changed if labels != base)]


COMBINATIONS = {"product": _product, "zip": _zip, "one-factor": _one_factor}
