"""Scaling laws of a study from its folder: fits per arm, predicted effects, and crossing points."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.joint_fit import FEWEST_SIZES, JointFit, JointPoint, fit_jointly
from flaxformer.analysis.scaling_fit import FARTHEST, ScalingFit, SizePoint, fit_arm, range_of
from flaxformer.statistics import scaling_law, scaling_tests
from flaxformer.statistics.judgement import FEWEST_SEEDS
from flaxformer.statistics.scaling_law import Functional, LawAtSizes, Matrix, Vector
from flaxformer.statistics.scaling_tests import LawEstimate
from flaxformer.store.declaration import Declaration, DeclaredScaling, Labels
from flaxformer.study.claim import arm_name
from flaxformer.study.scale import VARIABLE_NAMES, VARIABLES, variable_names

MISFIT = 0.01
"""Level of the test that a law describes its sizes; below it, the report says that it does not."""
GRID = 48
"""Number of values of C at which a crossing is tested before its ends are refined."""


@dataclasses.dataclass(frozen=True)
class Crossing:
    """Values of C at which two laws may be equal: an interval that the seeds do not exclude.

    `low` is 0 and `high` infinite where the interval reaches an end of the range that was searched; `value` is NaN if
    the fitted laws do not cross inside it.
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class PredictedEffect:
    """Arm minus reference arm, paired by seed: at ten times the largest C of the study, and where it changes sign."""

    labels: Labels
    reference: Labels
    size: float
    effect: LawEstimate | None
    """None if one of the two has no curve, or they share too few seeds."""
    seeds: int
    crossings: tuple[Crossing, ...] = ()
    searched: tuple[float, float] = (math.nan, math.nan)
    """Range of C in which crossings were searched: a factor of ten beyond the sizes on both sides."""


@dataclasses.dataclass(frozen=True)
class ScalingAnalysis:
    """Scaling laws of a study."""

    axis: str
    variable: str
    """C of predictions and crossing points: "flops", "parameters" or "tokens"."""
    fits: list[ScalingFit]
    """Law of each arm against the declared variable."""
    other_fits: list[ScalingFit]
    """Laws against the other variables that vary along the axis."""
    joint_fits: list[JointFit]
    """Joint law of each arm in parameters and tokens, if both vary along the axis and there are at least 6 sizes."""
    effects: list[PredictedEffect]
    """Effect of each arm, other than the reference, at ten times the largest C."""
    names: Mapping[str, str] = dataclasses.field(default_factory=lambda: VARIABLE_NAMES)
    """Names of the variables in reports."""


def scaling_axes(study: Declaration) -> set[str]:
    """Return the name of the axis over sizes, if a study declares one."""
    return {study.scaling.axis} if study.scaling else set()


def limits_of_scaling(scaling: ScalingAnalysis | None) -> list[str]:
    """Return sentences on what the laws do not show."""
    if scaling is None:
        return []
    form = "L∞ + A·C^(−α)" + (" or L∞ + A·N^(−α) + B·D^(−β)" if scaling.joint_fits else "")
    limits = [
        f"Intervals of scaling laws cover the seeds, and assume the form {form}; outside the sizes that were trained, "
        "nothing else supports it."
    ]
    limits += [
        f"The {law} does not describe {_name_of(fit.labels)} to the precision of the seeds (Hotelling's T², "
        f"p {fit.misfit_p:.2g}): its intervals are too narrow."
        for law, fits in (("law", scaling.fits), ("joint law", scaling.joint_fits))
        for fit in fits
        if fit.misfit_p < MISFIT
    ]
    name = scaling.names[scaling.variable]
    if len({tuple(point.size for point in fit.points) for fit in scaling.fits}) > 1:
        limits.append(
            f"Arms differ in {name} at the same {scaling.axis}: laws and their effects compare them at equal {name}, "
            f"the table of arms at equal {scaling.axis}."
        )
    return limits


def _name_of(labels: Labels) -> str:
    return ", ".join(f"{name} {label}" for name, label in labels.items()) or "the baseline"


def analyse_scaling(study: Declaration, arms: Sequence[ArmSummary]) -> ScalingAnalysis | None:
    """Return the scaling laws of a study, from its declaration and its arms; None if it declares none."""
    if not (rule := study.scaling):
        return None
    metric = range_of(study.metric, study.goal)
    fits = {
        variable: [
            fit_arm(labels, variable, points, study.seeds, metric) for labels, points in _lines(rule, variable, arms)
        ]
        for variable in VARIABLES
    }
    against = rule.against
    other_fits = [
        fit for name in VARIABLES if name != against for fit in fits[name] if len({p.size for p in fit.points}) > 1
    ]
    loss, names = rule.loss, variable_names(rule.embeddings)
    joint = [fit_jointly(labels, points, study.seeds, metric, loss) for labels, points in _joint_lines(rule, arms)]
    return ScalingAnalysis(rule.axis, against, fits[against], other_fits, joint, _effects(study, fits[against]), names)


def _joint_lines(rule: DeclaredScaling, arms: Sequence[ArmSummary]) -> list[tuple[Labels, list[JointPoint]]]:
    """The sizes of each combination of the other axes in which parameters and tokens vary, if there are enough."""

    def joint(point: SizePoint) -> JointPoint:
        return JointPoint(**vars(point), tokens=float(rule.scales[arm_name(point.arm.labels)].tokens))

    lines = [(labels, [*map(joint, points)]) for labels, points in _lines(rule, "parameters", arms)]
    return [(labels, points) for labels, points in lines if _has_enough_sizes(points)]


def _has_enough_sizes(points: Sequence[JointPoint]) -> bool:
    pairs = {(point.size, point.tokens) for point in points if not point.is_held_out}
    return len(pairs) >= FEWEST_SIZES and all(len(set(values)) > 1 for values in zip(*pairs, strict=True))


def _lines(rule: DeclaredScaling, variable: str, arms: Sequence[ArmSummary]) -> list[tuple[Labels, list[SizePoint]]]:
    """The sizes of each combination of the other axes, by increasing C."""
    lines: dict[tuple[tuple[str, str], ...], list[SizePoint]] = {}
    for arm in arms:
        label = arm.labels[rule.axis]
        size = float(getattr(rule.scales[arm_name(arm.labels)], variable))
        context = tuple((name, level) for name, level in arm.labels.items() if name != rule.axis)
        lines.setdefault(context, []).append(SizePoint(label, size, arm, label in rule.held_out))
    return [(dict(labels), sorted(points, key=lambda point: point.size)) for labels, points in lines.items()]


def _effects(study: Declaration, fits: Sequence[ScalingFit]) -> list[PredictedEffect]:
    """The effect of every arm against the one with the reference level of every axis."""
    axes = {axis.name: axis.baseline or axis.labels[0] for axis in study.axes}
    reference = next((fit for fit in fits if all(axes[name] == label for name, label in fit.labels.items())), None)
    if reference is None:
        return []
    return [_effect(fit, reference) for fit in fits if fit is not reference]


def _effect(fit: ScalingFit, reference: ScalingFit) -> PredictedEffect:
    sizes = [point.size for line in (fit, reference) for point in line.points]
    largest = FARTHEST * max(sizes)
    searched = (min(sizes) / FARTHEST, largest)
    seeds = [seed for seed in fit.seeds if seed in reference.seeds]
    missing = PredictedEffect(fit.labels, reference.labels, largest, None, len(seeds), (), searched)
    if fit.theta is None or reference.theta is None or len(seeds) < FEWEST_SEEDS:
        return missing
    unit = math.exp(float(np.mean(np.log([point.size for line in (fit, reference) for point in line.fitted_points]))))
    x = [np.log([point.size / unit for point in line.fitted_points]) for line in (fit, reference)]
    scores = [_rows(line, seeds) for line in (fit, reference)]
    theta = np.concatenate([scaling_law.fit(place, y.mean(0)) for place, y in zip(x, scores, strict=True)])
    stacked = np.hstack(scores)

    def difference(size: float) -> Functional:
        return functools.partial(scaling_law.difference_at, x=math.log(size / unit))

    law = scaling_law.law_at(*x)
    ends = scaling_tests.interval_of(difference(largest), law, stacked, theta)
    effect = LawEstimate(difference(largest)(theta)[0], *ends)
    grid = np.geomspace(*searched, GRID)
    intervals = _crossings(np.log(grid / unit), law, stacked, theta)
    crossings = tuple(Crossing(*(unit * math.exp(end) for end in ends)) for ends in intervals)
    return dataclasses.replace(missing, effect=effect, crossings=crossings)


def _rows(fit: ScalingFit, seeds: Sequence[int]) -> Matrix:
    """Scores of a fit at some of its seeds."""
    return np.empty((0, 0)) if fit.scores is None else fit.scores[[fit.seeds.index(seed) for seed in seeds]]


def _crossings(grid: Vector, law: LawAtSizes, scores: Matrix, theta: Vector) -> list[tuple[float, float, float]]:
    """Intervals of log(C / C₀) at which the t-test does not reject that two laws are equal, each with its crossing.

    An end at an end of the grid is infinite; an interval without a crossing of the fitted laws has NaN for it.
    """
    critical = scaling_tests.critical_t(len(scores))

    def excess(place: float) -> float:
        """Size of t above the critical one: negative where a crossing is not excluded."""
        functional = functools.partial(scaling_law.difference_at, x=place)
        t, _ = scaling_tests.t_of_hypothesis((functional, 0.0), law, scores, theta)
        return abs(t) - critical if math.isfinite(t) else -critical

    def gap(place: float) -> float:
        return scaling_law.difference_at(theta, place)[0]

    roots = [_root(gap, a, b) for a, b in itertools.pairwise(grid) if gap(a) * gap(b) < 0]
    places = np.union1d(grid, roots)
    outside = np.array([excess(place) > 0 for place in places])
    intervals, i = [], 0
    while i < len(places):
        if outside[i]:
            i += 1
            continue
        last = i
        while last + 1 < len(places) and not outside[last + 1]:
            last += 1
        low = -math.inf if i == 0 else _root(excess, places[i - 1], places[i])
        high = math.inf if last == len(places) - 1 else _root(excess, places[last], places[last + 1])
        inside = [root for root in roots if low <= root <= high]
        intervals.append((inside[0] if inside else math.nan, low, high))
        i = last + 1
    return intervals


def _root(function: scaling_law.Scalar, low: float, high: float) -> float:
    """Place of a change of sign, by bisection."""
    at_low = function(low)
    for _ in range(30):
        middle = (low + high) / 2
        if (at_middle := function(middle)) * at_low > 0:
            low, at_low = middle, at_middle
        else:
            high = middle
        if high - low < 1e-4:
            break
    return (low + high) / 2
