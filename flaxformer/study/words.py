"""How numbers and findings are said, the same in the terminal and in the HTML report."""

import math
from collections.abc import Iterable

from flaxformer.study.analysis import Analysis, Exploration, JudgedClaim
from flaxformer.study.statistics import Estimate

MARKS = {"supported": "✓", "refuted": "✗", "inconclusive": "?"}


def number(value: float | None, digits: int = 3) -> str:
    """A number as a report prints it."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def signed(effect: Estimate) -> str:
    """An effect with its interval, such as "+0.657 [+0.601, +0.713]"."""
    if effect.n == 1 and effect.sd == 0:
        return f"{effect.mean:+.3g} exactly"
    if math.isnan(effect.low):
        return f"{effect.mean:+.3f} (no interval from {effect.n} seed{'s' if effect.n != 1 else ''})"
    return f"{effect.mean:+.3f} [{effect.low:+.3f}, {effect.high:+.3f}]"


def duration(seconds: float) -> str:
    """A time span such as "12 s" or "3 min 05 s"."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def p_value(p: float) -> str:
    """A p-value that never says 0."""
    return "–" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def labels(items: dict[str, str]) -> str:
    """Levels such as "norm pre, warmup none"."""
    return ", ".join(f"{name} {label}" for name, label in items.items())


def finding(claim: JudgedClaim) -> str:
    """A claim's result in one clause."""
    unit = f" {claim.unit}" if claim.unit else ""
    judged, effect = claim.judgement, claim.judgement.effect
    if effect.n == 0:
        return "no seed has all the runs that it needs"
    if claim.kind == "equal":
        detail = f"; the margin is ±{claim.within:g}"
    else:
        wanted = f"; above {claim.by:g} is claimed" if claim.by else ""
        detail = f"{wanted}, {judged.agreeing} of {effect.n} seeds agree"
    return f"{signed(effect)}{unit}{detail}, p {p_value(judged.p_holm)} after Holm"


def surprise(one: Exploration, metric: str, unit: str) -> str:
    """An undeclared contrast in one sentence."""
    effect, where = one.judgement.effect, f"with {labels(one.context)}, " if one.context else ""
    better = (effect.mean < 0) == (metric == "validation_loss")
    against = ", against the direction around the baseline" if one.opposite else ""
    alone = f"a hint, p {p_value(one.judgement.p)} alone, " if one.hint else "p "
    return (
        f"{where}{one.axis} {one.label} is {'better' if better else 'worse'} than {one.reference}{against}: "
        f"{signed(effect)} {unit}, {one.judgement.agreeing} of {effect.n} seeds agree, "
        f"{alone}{p_value(one.judgement.p_holm)} after Holm"
    )


def surprises(analysis: Analysis, at_most: int = 5) -> list[str]:
    """The first undeclared findings, and how many more there are."""
    said = [surprise(one, analysis.study["metric"], analysis.study["unit"]) for one in analysis.surprises]
    more = len(said) - at_most
    return said[:at_most] + ([f"and {more} more, in the report's last table"] if more > 0 else [])


def fixed(analysis: Analysis) -> Iterable[str]:
    """How the answer was reached, in clauses: runs, seeds and parameters; what diverged; what failed."""
    study = analysis.study
    if study["kind"] == "probe":
        yield f"{len(analysis.quantities)} quantities, " + (
            "exact" if analysis.exact else f"{len(study['seeds'])} seeds"
        )
        return
    diverged, finished, low, high = analysis.divergence
    yield f"{finished} of {len(study['cells'])} runs, {len(study['seeds'])} paired seeds"
    yield f"{study['parameters']:,} parameters"
    if finished:
        yield f"{diverged} diverged (rate {diverged / finished:.0%}, 95 % interval {low:.0%} to {high:.0%})"
    if analysis.failed:
        yield f"{len(analysis.failed)} failed: {analysis.failed[0]['cause']}"
