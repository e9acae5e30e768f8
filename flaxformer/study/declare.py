"""Declaration of a study: a baseline, the axes to vary, the seeds, and the claims to test."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from jax import Array

from flaxformer.core.paths import get_at, replace_at
from flaxformer.core.struct import Config
from flaxformer.store.declaration import QUANTITY, Combine, Labels
from flaxformer.store.places import WeightsToKeep
from flaxformer.store.rows import Row
from flaxformer.study.arm import Arm, Trial, distinct
from flaxformer.study.axis import Axis, Number
from flaxformer.study.caveats import caveats_of
from flaxformer.study.checks import check_name, check_texts
from flaxformer.study.claim import Claim, Contrast, arm_name
from flaxformer.study.combinations import COMBINATIONS, check_number_of_trials
from flaxformer.study.divergence import is_test_metric
from flaxformer.study.equal_cost import EqualCost, Match, match
from flaxformer.study.halving import Goal, Halving, goal_of
from flaxformer.study.metrics import check_axis_names, check_metric, check_test_metric, named_goal, unit_of
from flaxformer.study.scale import run_scale
from flaxformer.study.scaling import Scaling
from flaxformer.study.scaling_claim import ScalingClaim
from flaxformer.study.seeds import check_seeds
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.training.run import Run

Measure = Callable[[Any, Run], Mapping[str, Array]]
"""Traced function of a model's weights and its run that returns named scalars."""
Derive = Callable[[Mapping[str, Row]], Mapping[str, Number]]
"""Function of the finished rows of one seed, by the name of their arm, that returns named numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A question that training answers: a baseline, the axes to vary, the seeds, the metric, and the claims.

    Args:
      name: name of its folder of results.
      question: one sentence; the first line of the report.
      baseline: the run that the arms vary.
      axes: the factors to vary.
      combine: combination of the axes' levels: "product" (every combination), "zip" (first levels, second levels, and
        so on), "one-factor" (the baseline, and every level alone), or "leave-one-out" (of axes with two levels: the
        baseline, every change of it alone, all changes together, and all but each; see `leave_one_out`).
      seeds: seeds of every arm; arms are compared seed by seed.
      metric: metric by which arms are compared: "validation_loss", "validation_accuracy"; "test_loss" or
        "test_accuracy", to report a result on data by which nothing was chosen; a column of a named evaluation, such as
        "long_loss" or "test_long_loss"; or a name that `measure` returns.
      claims: tested together, with Holm's correction.
      scaling: axis over sizes along which scaling laws are fitted.
      measure: traced function `measure(params, run)` that returns further metrics, at every evaluation.
      derive: function that returns numbers of several runs, from the finished rows of one seed by the name of their
        arm (such as "norm=pre,warmup=none"); a claim refers to one as {"quantity": NAME}.
      metric_unit: unit of a metric of `measure`.
      halving: rule by which the worst arms are stopped early.
      goal: the direction in which the metric is good; by default the halving's, else higher for accuracies of the task
        and of named evaluations, and lower for every other metric.
      caveats: limits of the study, which the report repeats; "{training.steps} steps" shows the value of that field of
        the baseline, also where a command has overridden it.
      compare: cost that all arms have in common with the baseline: "equal compute", "equal parameters", "equal tokens",
        "equal steps", or an `EqualCost`, which names the field that is adjusted and the tolerance; None for the arms as
        they are.
      keep: weights of each trial to keep in the folder: "final", "best" (by the metric, of the evaluations at which it
        is finite; none if it never is), or "all" evaluated steps.
      test: False to leave the test data alone, so that no choice can depend on them.
      file: file of the study, set when it is loaded; its code counts for the identity of the results.
    """

    name: str
    question: str
    baseline: Run
    axes: Sequence[Axis] = ()
    seeds: Sequence[int] = range(5)
    combine: Combine = "product"
    metric: str = "validation_loss"
    claims: Sequence[Claim | ScalingClaim] = ()
    scaling: Scaling | None = None
    caveats: Sequence[str] = ()
    measure: Measure | None = None
    derive: Derive | None = None
    metric_unit: str = ""
    halving: Halving | None = None
    goal: Goal | None = None
    compare: EqualCost | str | None = None
    keep: WeightsToKeep | None = None
    test: bool = True
    file: Path | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        check_name(self.name)
        check_texts(self.question, self.caveats, self.metric_unit)
        caveats_of(self.caveats, self.baseline)
        check_seeds(self.seeds)
        check_metric(self.metric, self.baseline, self.measure is not None)
        check_test_metric(self.metric, halving=self.halving, keep=self.keep if self.keep == "best" else None)
        if not self.test and is_test_metric(self.metric):
            raise UserError(f"metric is '{self.metric}' and test is False; expected a metric of the validation data")
        if self.goal is None:
            goal = None if self.halving is None else self.halving.goal
            object.__setattr__(self, "goal", goal or named_goal(self.metric, self.baseline))
        goal_of(self.metric, self.goal)
        names = [axis.name for axis in self.axes]
        if len(set(names)) < len(names):
            raise UserError(f"axes are named {names}; expected different names (give one with name=)")
        check_axis_names(names, self.baseline)
        check_number_of_trials(self.combine, self.axes, len(self.seeds))
        object.__setattr__(self, "compare", EqualCost.of(self.compare))
        if isinstance(self.compare, EqualCost):
            self.compare.check_axes({axis.name: axis.paths for axis in self.axes})
        self._check_halving(self._declared_arms)
        if self.scaling is not None:
            self.scaling.check(self.axes, self.combine, self.halving is not None)
        self._check_seeds_vary()
        self._contrasts(is_planned=False)

    def _check_halving(self, arms: Sequence[Arm]) -> None:
        """Raise UserError if an arm is not evaluated at the first rung of the halving."""
        if self.halving is not None:
            for arm in arms:
                self.halving.check(arm.run.training.steps, arm.run.training.interval)

    def _check_seeds_vary(self) -> None:
        """Raise UserError if every source of randomness has a fixed seed, so that all seeds of an arm are one run."""
        for arm in self._declared_arms if len(self.seeds) > 1 else []:
            seeds = arm.run.seeds
            if None not in (seeds.init, seeds.data, seeds.dropout):
                raise UserError(
                    f"arm '{arm.name}' has {seeds}, so that its {len(self.seeds)} seeds are the same run; expected "
                    "None for at least one, or one seed"
                )

    def in_file(self, file: Path) -> Self:
        """Return the same study with its file; its arms are not declared and checked again."""
        study = copy.copy(self)
        object.__setattr__(study, "file", file)
        return study

    @property
    def unit(self) -> str:
        """Unit of the metric."""
        unit = unit_of(self.metric, self.baseline)
        return self.metric_unit if unit is None else unit

    def arms(self) -> list[Arm]:
        """Return every combination of levels that the study declares, each once; with `compare`, at equal cost."""
        return list(self._arms)

    @functools.cached_property
    def matches(self) -> dict[str, Match]:
        """Adjustment of each arm by `compare`, by the arm's name; empty without it."""
        if not isinstance(self.compare, EqualCost):
            return {}
        return {arm.name: match(self.compare, arm.name, arm.run, self.baseline) for arm in self._declared_arms}

    @functools.cached_property
    def _arms(self) -> list[Arm]:
        """The arms at equal cost: counting FLOPs reads the data and traces programs, which a declaration does not."""
        if not self.matches:
            return self._declared_arms
        arms = distinct([Arm(arm.labels, self.matches[arm.name].run) for arm in self._declared_arms])
        self._check_halving(arms)
        return arms

    @functools.cached_property
    def _declared_arms(self) -> list[Arm]:
        """The arms before `compare` adjusts them."""
        arms: list[Arm] = []
        shared: dict[tuple[object, ...], Config] = {}
        for labels in COMBINATIONS[self.combine](self.axes, self.baseline):
            changes: dict[str, object] = {}
            for axis in self.axes:
                changes |= axis.changes(labels[axis.name]) if labels[axis.name] in axis.levels else {}
            arms.append(Arm(labels, self._apply_changes(self._evaluation_changes(changes) | changes, shared)))
        return distinct(arms)

    def _apply_changes(self, changes: Mapping[str, object], shared: dict[tuple[object, ...], Config]) -> Run:
        """Return the baseline with changes. Arms share a config, such as the model's, in which they have equal values.

        Args:
          changes: value at each path.
          shared: changed configs of earlier calls, by their changes.
        """
        nested: dict[str, dict[str, object]] = {}
        for path, value in changes.items():
            name, _, inner_path = path.partition(".")
            if not inner_path or name in changes or not isinstance(getattr(self.baseline, name, None), Config):
                return replace_at(self.baseline, changes)
            nested.setdefault(name, {})[inner_path] = value
        keys = {name: (name, *((path, id(value)) for path, value in inner.items())) for name, inner in nested.items()}
        for name, key in keys.items():
            if key not in shared:
                shared[key] = replace_at(getattr(self.baseline, name), nested[name], f"{name}.")
        return self.baseline.replace(**{name: shared[key] for name, key in keys.items()})

    def _evaluation_changes(self, changes: Mapping[str, object]) -> dict[str, object]:
        """Return the change that keeps the evaluation set of the baseline in an arm with another batch size."""
        task = self.baseline.task
        is_same = changes.get("task.batch_size", task.batch_size) == task.batch_size or "task" in changes
        if is_same or task.evaluation_batch_size is not None:
            return {}
        return {"task.evaluation_batch_size": task.batch_size}

    def trials(self) -> list[Trial]:
        """Return every arm at every seed."""
        return [Trial(arm, seed) for arm in self.arms() for seed in self.seeds]

    def baseline_label(self, axis: Axis) -> str | None:
        """Return the baseline's label on an axis; without one, "baseline" for a one-factor study, else None."""
        return self._baseline_labels[axis.name] or ("baseline" if self.combine == "one-factor" else None)

    @functools.cached_property
    def _baseline_labels(self) -> dict[str, str | None]:
        return {axis.name: axis.baseline_label(self.baseline) for axis in self.axes}

    def labels(self, axis: Axis) -> list[str]:
        """Return every label of the arms on an axis, preceded by the baseline's if it is not a level."""
        baseline = self.baseline_label(axis)
        return [*([baseline] if baseline and baseline not in axis.levels else []), *axis.levels]

    def coordinates(self, axis: Axis) -> dict[str, dict[str, Number | str]]:
        """Coordinates of every label that arms have on an axis; empty if the baseline's own level has none."""
        by_name = axis.coordinates()
        if (baseline := self.baseline_label(axis)) and baseline not in axis.levels and by_name:
            value = get_at(self.baseline, axis.paths[0])
            return {name: {baseline: value} | values for name, values in by_name.items()} if len(by_name) == 1 else {}
        return by_name

    def contrasts(self) -> list[Contrast]:
        """Return the contrast of each claim, with a label for every axis.

        Raises:
          UserError: a claim is about an arm or a quantity that the study does not have.
        """
        return self._contrasts(is_planned=True)

    def _contrasts(self, is_planned: bool) -> list[Contrast]:
        """The contrasts; until the study is planned, those of slopes have sizes 1, 10, 100, …, which count nothing."""
        known = {arm.name for arm in self._declared_arms} if self.claims else set()
        contrasts = []
        for claim in self.claims:
            complete = functools.partial(self._complete, who=f"claim '{claim.text}'")
            if isinstance(claim, ScalingClaim):
                contrasts.append(self._slope(claim, complete, is_planned))
            else:
                contrasts.append(claim.contrast(complete))
            arms = [labels for _, labels in contrasts[-1].terms]
            for labels in arms:
                if arm_name(labels) not in known and QUANTITY not in labels:
                    raise UserError(f"claim '{claim.text}' is about {labels}, which this study does not run")
                if QUANTITY in labels and self.derive is None:
                    raise UserError(f"claim '{claim.text}' is about {labels}, and the study has no derive to give it")
                if arms.count(labels) > 1:
                    raise UserError(f"claim '{claim.text}' compares {labels} with itself; expected different arms")
        return contrasts

    def _slope(self, claim: ScalingClaim, complete: Callable[[Labels], Labels], is_planned: bool) -> Contrast:
        if self.scaling is None:
            raise UserError(f"claim '{claim.text}' is about a slope, and the study has no scaling; give it one")
        axis, against = self.scaling.axis, self.scaling.against
        sizes = next(list(study_axis.levels) for study_axis in self.axes if study_axis.name == axis)

        def size_of(labels: Labels) -> float:
            return self.scales[arm_name(labels)][against] if is_planned else 10.0 ** sizes.index(labels[axis])

        return claim.slope(complete, axis, sizes, size_of)

    @functools.cached_property
    def scales(self) -> dict[str, dict[str, float]]:
        """FLOPs, parameters and tokens of every arm by its name; see `run_scale`."""
        embeddings = self.scaling is None or self.scaling.embeddings
        return {arm.name: run_scale(arm.run, embeddings) for arm in self.arms()}

    def _complete(self, labels: Labels, who: str) -> Labels:
        """Return a label for every axis: the given one, else the baseline's."""
        axes = {axis.name: axis for axis in self.axes}
        for name, label in labels.items():
            if name not in axes:
                raise UserError(f"{who} names axis '{name}'{did_you_mean(name, list(axes))}")
            if label not in self.labels(axes[name]):
                raise UserError(f"{who} names {name} '{label}'{did_you_mean(label, self.labels(axes[name]))}")
        full: Labels = {}
        for name, axis in axes.items():
            chosen = labels.get(name) or self.baseline_label(axis)
            if chosen is None:
                raise UserError(f"{who} has no label of axis '{name}', and no level has the baseline's value; give one")
            full[name] = chosen
        return full
