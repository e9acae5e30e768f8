"""Comparison at equal cost: a free field of each arm is adjusted until the arm costs as much as the baseline."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flaxformer.core.paths import get_at, replace_at
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError, did_you_mean, quote
from flaxformer.system.wording import count_of, with_prefix
from flaxformer.training.cost import parameter_counts, run_cost
from flaxformer.training.run import Run

STEPS, EVALUATE_EVERY = "training.steps", "training.evaluate_every"
D_FF = "model.feed_forward.d_ff"
LARGEST = 2**40
"""Largest value of an adjusted field that is tried."""
MOST_LISTED = 20
"""Largest number of adjusted arms that a plan lists."""


class Quantity(NamedTuple):
    """A cost that arms can have in common."""

    of: Callable[[Run], float]
    adjust: str
    """Field that is adjusted by default."""
    unit: str


QUANTITIES = {
    "compute": Quantity(lambda run: run_cost(run).flops, STEPS, "FLOP"),
    "tokens": Quantity(lambda run: run.tokens_per_step * run.training.steps, STEPS, " tokens"),
    "steps": Quantity(lambda run: run.training.steps, STEPS, " steps"),
    "parameters": Quantity(lambda run: parameter_counts(run.model).total, D_FF, " parameters"),
    "active parameters": Quantity(lambda run: parameter_counts(run.model).active, D_FF, " active parameters"),
    "parameters without embeddings": Quantity(
        lambda run: parameter_counts(run.model).without_embeddings, D_FF, " parameters without embeddings"
    ),
}
"""Costs by name: FLOPs of training, tokens, steps, and numbers of parameters (`training.cost`)."""


@dataclasses.dataclass(frozen=True)
class EqualCost:
    """Rule of a comparison at equal cost: `EqualCost("compute", adjust="training.steps", tolerance=0.02)`.

    An arm whose cost differs from that of the study's baseline by more than the tolerance gets the value of `adjust`
    with the nearest cost; an arm within the tolerance stays as it is. The adjusted value is part of the arm's config.

    With `training.steps`, `training.evaluate_every` is adjusted too, so that every arm has as many evaluations as
    before, at the same fractions of its training; the steps are a multiple of that number.

    Args:
      quantity: "compute" (FLOPs of training), "tokens", "steps", "parameters", "active parameters" or "parameters
        without embeddings".
      adjust: path of an integer field of the run that increases the cost; or several paths that take the same value, of
        which an arm needs to have one. By default training.steps, or model.feed_forward.d_ff for parameters.
      tolerance: largest relative difference from the cost of the baseline.
      multiple_of: divisor of the adjusted value, such as a number of heads.

    Raises:
      UserError: an unknown quantity, a tolerance outside (0, 1), or no positive divisor.
    """

    quantity: str
    adjust: str | Sequence[str] = ""
    tolerance: float = 0.02
    multiple_of: int = 1

    def __post_init__(self) -> None:
        check_arguments(self)
        if self.quantity not in QUANTITIES:
            raise UserError(
                f"compare is at equal {quote(self.quantity)}{did_you_mean(self.quantity, list(QUANTITIES))}"
            )
        paths = (self.adjust,) if isinstance(self.adjust, str) else tuple(self.adjust)
        object.__setattr__(self, "adjust", tuple(filter(None, paths)) or (QUANTITIES[self.quantity].adjust,))
        if not 0 < self.tolerance < 1:
            raise UserError(f"compare.tolerance is {self.tolerance}; expected a number between 0 and 1, such as 0.02")
        if self.multiple_of < 1:
            raise UserError(f"compare.multiple_of is {self.multiple_of}; expected a whole number of at least 1")

    @classmethod
    def of(cls, rule: "EqualCost | str | None") -> "EqualCost | None":
        """Return a rule from itself, or from text such as "equal compute".

        Raises:
          UserError: another text or value.
        """
        if rule is None or isinstance(rule, EqualCost):
            return rule
        texts = [f"equal {name}" for name in QUANTITIES]
        if not isinstance(rule, str) or rule not in texts:
            hint = did_you_mean(rule, texts) if isinstance(rule, str) else f"; expected one of {texts}, or EqualCost"
            raise UserError(f"compare is {quote(rule)}{hint}")
        return cls(rule.removeprefix("equal "))

    def check_axes(self, paths: Mapping[str, Sequence[str]]) -> None:
        """Raise UserError if an axis varies an adjusted field itself; `paths` has the paths of each axis by name."""
        for axis, axis_paths in paths.items():
            for path in axis_paths:
                if path in self.adjust:
                    raise UserError(
                        f"compare adjusts {path}, which axis '{axis}' varies; expected another field in adjust="
                    )


@dataclasses.dataclass(frozen=True)
class Match:
    """An arm whose cost was compared with that of the baseline."""

    run: Run
    before: float
    """Cost of the arm as it was declared, divided by that of the baseline."""
    after: float
    """The same with the adjusted value."""
    changes: Mapping[str, tuple[int | None, int]]
    """Value of each adjusted field before and after, by its path; empty for an arm within the tolerance."""


def match(rule: EqualCost, arm: str, run: Run, baseline: Run) -> Match:
    """Adjust a run until it costs as much as the baseline.

    Args:
      rule: the quantity, the field and the tolerance.
      arm: name of the arm, for messages.
      run: run of the arm.
      baseline: run whose cost is the target.

    Raises:
      UserError: the run lacks the field, the field does not increase the cost, or no value is within the tolerance.
    """
    cost, target = QUANTITIES[rule.quantity].of, QUANTITIES[rule.quantity].of(baseline)
    before = cost(run) / target
    if abs(before - 1) <= rule.tolerance:
        return Match(run, before, before, {})
    paths = [path for path in rule.adjust if _has(run, path)]
    if not paths:
        raise UserError(
            f"compare adjusts {' or '.join(rule.adjust)}, which arm '{arm}' does not have; expected a path of every arm"
        )
    evaluations = run.training.steps // run.training.interval
    unit = math.lcm(rule.multiple_of, evaluations) if paths == [STEPS] else rule.multiple_of

    def changes_to(value: int) -> dict[str, int]:
        return dict.fromkeys(paths, value) | (changes_of_steps(run, value) if STEPS in paths else {})

    @functools.cache
    def relative(number: int) -> float:
        changes = changes_to(number * unit)
        try:
            return cost(replace_at(run, changes)) / target
        except UserError as error:
            what = ", ".join(f"{path}={value}" for path, value in changes.items())
            raise UserError(f"compare: arm '{arm}' with {what}: {error} (multiple_of= restricts the values)") from error

    old = get_at(run, paths[0])
    number = nearest(relative, max(1, round(old / unit)) if isinstance(old, int) else 1)
    if number is None:
        raise UserError(
            f"compare adjusts {' and '.join(paths)}, which does not increase the {rule.quantity} of arm '{arm}'; "
            "expected a field that does"
        )
    after, changes = relative(number), changes_to(number * unit)
    if abs(after - 1) > rule.tolerance:
        values = ", ".join(f"{path}={value}" for path, value in changes.items())
        where = f" in multiples of {unit}" if unit > 1 else ""
        raise UserError(
            f"compare: arm '{arm}' cannot have the {rule.quantity} of the baseline "
            f"({with_prefix(target, QUANTITIES[rule.quantity].unit)}) within {rule.tolerance:.2g}: the nearest is "
            f"{values}{where}, with {after:.4g} times as much; expected a tolerance of at least "
            f"{math.ceil(abs(after - 1) * 1000) / 1000:g}, or another field in adjust="
        )
    return Match(
        replace_at(run, changes), before, after, {path: (get_at(run, path), value) for path, value in changes.items()}
    )


def changes_of_steps(run: Run, steps: int) -> dict[str, int]:
    """Return the fields of a run, with their values, that change its steps but not its number of evaluations.

    Args:
      run: the run.
      steps: multiple of that number.
    """
    if run.training.evaluate_every is None:
        return {STEPS: steps}
    return {STEPS: steps, EVALUATE_EVERY: steps // (run.training.steps // run.training.interval)}


def _has(run: Run, path: str) -> bool:
    """True if the run has an integer field, or one that is None, at the path.

    Raises:
      UserError: the field is something else.
    """
    try:
        value = get_at(run, path)
    except UserError:
        return False
    if not isinstance(value, int | None) or isinstance(value, bool):
        raise UserError(f"compare adjusts {path}, which is {value!r}; expected a whole number")
    return True


def nearest(cost: Callable[[int], float], start: int) -> int | None:
    """Return the number n ≥ 1 at which a non-decreasing cost is nearest to 1; None if the cost does not increase.

    The line through the costs at `start` and a multiple of it is exact for a cost that is linear in n; for others,
    bisection follows.
    """
    first = cost(start)
    other = next((start * factor for factor in (2, 4, 8) if cost(start * factor) > first), None)
    if other is None:
        return None
    guess = max(1, start + math.floor((1 - first) / (cost(other) - first) * (other - start)))
    tried = [start, other, guess, guess + 1]
    low = max((number for number in tried if cost(number) < 1), default=0)
    high = min((number for number in tried if cost(number) >= 1), default=2 * max(tried))
    while cost(high) < 1:
        low, high = high, 2 * high
        if high > LARGEST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) < 1 else (low, middle)
    return min((number for number in (low, high) if number), key=lambda number: abs(cost(number) - 1))


def describe_matches(rule: EqualCost | str | None, matches: Mapping[str, Match], baseline: Run) -> list[str]:
    """Return the rule in a sentence, and a line per adjusted arm; nothing without a rule."""
    if not isinstance(rule, EqualCost):
        return []
    quantity = QUANTITIES[rule.quantity]
    target, paths = with_prefix(quantity.of(baseline), quantity.unit), " or ".join(rule.adjust)
    adjusted = {arm: match for arm, match in matches.items() if match.changes}
    farthest = max((abs(match.after - 1) for match in matches.values()), default=0.0)
    lines = [
        f"Compared at equal {rule.quantity}: {target}, within {rule.tolerance:.2g} (largest difference "
        f"{farthest:.2g}); {paths} adjusted in {len(adjusted)} of {count_of(len(matches), 'arm')}."
    ]
    for arm, match in list(adjusted.items())[:MOST_LISTED]:
        changes = ", ".join(f"{path} {old} -> {new}" for path, (old, new) in match.changes.items())
        lines.append(f"  {arm}: {changes} ({match.before:.3g} -> {match.after:.3g} times the {rule.quantity})")
    more = len(adjusted) - MOST_LISTED
    return lines + ([f"  and {more} more, in study.json once the study has run"] if more > 0 else [])
