"""Declaration of a study: the content of study.json, typed, and checked when it is made or read."""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from flaxformer.system.digests import JsonObject
from flaxformer.system.typed_data import FiniteNumber, Int64, Record, convert, expect
from flaxformer.system.user_code.changes import CodeChange

FORMAT = 5
"""Version of study.json; raised when its form changes."""
QUANTITY = "quantity"
"""Name that stands for an axis in the labels of a number that is measured or derived."""
VERDICTS = {"supported", "refuted", "inconclusive"}
"""Verdicts on a claim."""
Goal = Literal["lower", "higher"]
"""The better values of a metric."""
Combine = Literal["product", "zip", "one-factor", "leave-one-out"]
"""Combinations of the levels of the axes."""
WITHOUT, WITH = "without", "with"
"""Labels of an axis that is one feature of a recipe."""
Labels = dict[str, str]
"""Label of an arm on each axis."""
Terms = Sequence[tuple[float, Labels]]
"""Weighted arms and quantities whose sum is a contrast."""


def key_of(labels: Labels) -> str:
    """Return the labels in an order of their own, as a key."""
    return ",".join(f"{name}={labels[name]}" for name in sorted(labels))


class DeclaredAxis(Record, frozen=True, kw_only=True):
    """An axis: a factor of the study, with the label of each level."""

    name: str
    path: str
    labels: tuple[str, ...]
    baseline: str | None
    """The label of the baseline; None for a baseline that is not an arm."""
    coordinates: dict[str, dict[str, Int64 | FiniteNumber | str]] = msgspec.field(default_factory=dict)
    """Value of each path by label, for the figures of sweeps."""


class DeclaredClaim(Record, frozen=True, kw_only=True):
    """A claim, with its contrast: Σ weight · arm + constant, positive in the direction of the claim."""

    text: str
    kind: Literal["lower", "higher", "equal"]
    by: FiniteNumber
    """Smallest effect that supports the claim."""
    within: FiniteNumber | None
    """Margin of an equality; None for other claims."""
    unit: str | None = None
    """Unit of the contrast; None for the study's."""
    terms: tuple[tuple[FiniteNumber, Labels], ...]
    constant: FiniteNumber
    answers: dict[str, str] | None = None
    """A sentence per verdict that answers the study's question."""

    def __post_init__(self) -> None:
        expect((self.within is not None) == (self.kind == "equal"), "within", self.within, "a margin of an equality")
        expect(
            bool(self.terms) and all(weight for weight, _ in self.terms), "terms", self.terms, "weights other than 0"
        )
        expect(self.answers is None or {*self.answers} == VERDICTS, "answers", self.answers, ", ".join(VERDICTS))


class ArmScale(Record, frozen=True, kw_only=True):
    """Size of an arm of a scaling law."""

    flops: FiniteNumber
    parameters: FiniteNumber
    tokens: FiniteNumber

    def __post_init__(self) -> None:
        expect(min(self.flops, self.parameters, self.tokens) >= 0, "size", self, "numbers of at least 0")


class DeclaredScaling(Record, frozen=True, kw_only=True):
    """Rule of a scaling law, with the size of every arm (`flaxformer.study.scaling.Scaling`)."""

    axis: str
    against: Literal["flops", "parameters", "tokens"]
    held_out: tuple[str, ...]
    loss: Literal["huber", "log_squares", "squares"] = "squares"
    embeddings: bool = True
    scales: dict[str, ArmScale] = msgspec.field(default_factory=dict)
    """Size by arm; empty in the log."""


class DeclaredData(Record, frozen=True, kw_only=True):
    """Evaluation data of an arm, and how many of its examples also occur in training."""

    digest: str
    examples: Int64
    in_training: Int64
    compared: Int64 | None = None
    """FiniteNumber of training examples that were drawn for the comparison; None for all."""


class MatchedArm(Record, frozen=True, kw_only=True):
    """Cost of an arm relative to the baseline, before and after the fields in `changes` were adjusted."""

    before: FiniteNumber
    after: FiniteNumber
    changes: dict[str, tuple[Int64 | None, Int64]]


class DeclaredComparison(Record, frozen=True, kw_only=True):
    """Rule of a comparison at equal cost, and what it changed in each arm."""

    quantity: str
    adjust: tuple[str, ...]
    tolerance: FiniteNumber
    multiple_of: Int64
    arms: dict[str, MatchedArm]


class Recipe(Record, frozen=True, kw_only=True):
    """Everything but the seed that determines the numbers of an arm's trials."""

    run: JsonObject
    """Config in canonical form, without its seed."""
    semantics: Int64
    """`flaxformer.SEMANTICS`."""
    data: JsonObject
    """Fingerprint of the data."""
    until: Int64 | None = None
    """Step at which a rung of a halving ends."""
    code: dict[str, str] = msgspec.field(default_factory=dict)
    """Digests of user code, by the name of the definition."""
    halving: JsonObject | None = None
    """Rule of a halving, and the runs that compete in it."""


class DeclaredTrial(Record, frozen=True, kw_only=True):
    """An arm at a seed."""

    trial: str
    arm: str
    labels: Labels
    group: str
    seed: Int64
    fingerprint: str
    kept: str | None = None
    """Fingerprint of its result, if that is of earlier code and was kept."""
    initial_weights: str | None = None

    def accepts(self, seed: int | None, fingerprint: str | None) -> bool:
        """True if a result with this seed and fingerprint is of this trial; one without them may be."""
        known = (None, self.fingerprint, self.kept)
        return seed is None or (seed == self.seed and fingerprint in known)


class DeclaredArm(Record, frozen=True, kw_only=True):
    """An arm: its labels, its program, and the fingerprint of its trial at each seed."""

    arm: str
    labels: Labels
    group: str
    fingerprints: tuple[str, ...]
    initial_weights: tuple[str, ...] = ()
    """Digest of the weights that its trial at each seed starts from; empty if all weights are drawn."""


class DeclaredQuestion(Record, frozen=True, kw_only=True):
    """Question of a study: texts, definitions, claims and seeds, which do not depend on recipes."""

    name: str
    question: str
    metric: str
    unit: str
    goal: Goal | None = None
    caveats: tuple[str, ...] = ()
    seeds: tuple[Int64, ...]
    axes: tuple[DeclaredAxis, ...] = ()
    claims: tuple[DeclaredClaim, ...] = ()
    scaling: DeclaredScaling | None = None
    measured_by: str = ""
    """Digest of the code, and of the recipes, that give measured or derived numbers; empty without any."""


class Declaration(DeclaredQuestion, dict=True, frozen=True, kw_only=True):
    """A study, or a probe, as its folder holds it: all that resuming and reporting need."""

    kind: Literal["study", "probe"]
    format: Int64
    """`FORMAT`."""
    exact: bool = False
    """True if the numbers do not depend on the seed."""
    combine: Combine = "product"
    arms: tuple[DeclaredArm, ...] = ()
    recipes: dict[str, Recipe] = msgspec.field(default_factory=dict)
    """Recipe by arm, also of arms of earlier declarations."""
    references: dict[str, FiniteNumber] = msgspec.field(default_factory=dict)
    """Losses to compare with, such as that of a uniform prediction."""
    data_notes: tuple[str, ...] = ()
    """Sentences on the data of the baseline: sizes, balance, repeated rows."""
    parameters: Int64 = 0
    """FiniteNumber of parameters of the baseline."""
    evaluation_data: dict[str, DeclaredData] = msgspec.field(default_factory=dict)
    evaluation_columns: tuple[str, ...] = ()
    """Columns of the baseline's named evaluations."""
    compare: DeclaredComparison | None = None
    code: dict[str, str] = msgspec.field(default_factory=dict)
    """Digests of the code that measures or derives, by the name of the definition."""
    declaration: str = ""
    """Digest of the last entry of the log of declarations."""
    kept_measurements: tuple[str, ...] = ()
    """Earlier `measured_by` whose measurements are kept."""
    code_changes: tuple[CodeChange, ...] = ()
    kept_results: dict[str, str] = msgspec.field(default_factory=dict)
    """Fingerprint of each result of earlier code that was kept, by the name of its trial."""

    def __post_init__(self) -> None:
        expect(bool(self.seeds) and len({*self.seeds}) == len(self.seeds), "seeds", self.seeds, "different seeds")
        axes = {axis.name: {*axis.labels} for axis in self.axes}
        expect(len(axes) == len(self.axes), "axes", list(axes), "different names")
        for axis in self.axes:
            expect(bool(axis.labels), f"axis {axis.name}", axis.labels, "a label")
            known = (None, *axis.labels)
            expect(axis.baseline in known, f"baseline of axis {axis.name}", axis.baseline, "one of its labels")
            for path, values in axis.coordinates.items():
                expect(values.keys() >= {*axis.labels}, f"coordinates.{path}", list(values), "a value per label")
        expect(len({arm.arm for arm in self.arms}) == len(self.arms), "arms", len(self.arms), "different names")
        for arm in self.arms:
            _check_labels(f"arm {arm.arm}", arm.labels, axes)
            n = len(self.seeds)
            expect(len(arm.fingerprints) == n, f"arm {arm.arm}", arm.fingerprints, f"{n} fingerprints")
            expect(len(arm.initial_weights) in (0, n), f"arm {arm.arm}", arm.initial_weights, f"{n} digests")
            expect(arm.arm in self.recipes, "recipes", list(self.recipes)[:5], f"one of {arm.arm}")
        for claim in self.claims:
            for _, labels in claim.terms:
                if labels.keys() != {QUANTITY}:
                    _check_labels(f"claim '{claim.text}'", labels, axes)
        if self.scaling is not None:
            expect(self.scaling.axis in axes, "scaling.axis", self.scaling.axis, "an axis")
            missing = [arm.arm for arm in self.arms if arm.arm not in self.scaling.scales]
            expect(not missing, "scaling.scales", missing[:5], "the size of every arm")

    @functools.cached_property
    def trials(self) -> tuple[DeclaredTrial, ...]:
        """Every arm at every seed, in the order of declaration."""
        return tuple(
            DeclaredTrial(
                trial=f"{arm.arm},seed={seed}",
                arm=arm.arm,
                labels=arm.labels,
                group=arm.group,
                seed=seed,
                fingerprint=arm.fingerprints[n],
                kept=self.kept_results.get(f"{arm.arm},seed={seed}"),
                initial_weights=arm.initial_weights[n] if arm.initial_weights else None,
            )
            for arm in self.arms
            for n, seed in enumerate(self.seeds)
        )

    @functools.cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprint by the name of the trial."""
        return {trial.trial: trial.fingerprint for trial in self.trials}

    @functools.cached_property
    def initial_weights(self) -> dict[str, str]:
        """Digest of the weights that a trial starts from, by its name, where some are not drawn."""
        return {trial.trial: trial.initial_weights for trial in self.trials if trial.initial_weights is not None}


def read(data: JsonObject) -> Declaration:
    """Return the declaration of plain data.

    Raises:
      FormError: the field, and what was expected.
    """
    declaration: Declaration = convert(data, Declaration)
    return declaration


def _check_labels(where: str, labels: Labels, axes: Mapping[str, Collection[str]]) -> None:
    expect(labels.keys() == axes.keys(), where, labels, f"a label of each axis: {', '.join(axes) or 'none'}")
    for name, label in labels.items():
        expect(label in axes[name], where, labels, f"labels of axis {name}")
