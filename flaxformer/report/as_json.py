"""The answer of a study as plain data, for programs: claims with their verdicts, arms, and what limits them."""

from pathlib import Path

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.compare import Comparison
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report import verdicts
from flaxformer.report.effect_tables import effects_json
from flaxformer.statistics.estimates import Estimate
from flaxformer.statistics.finite import finite
from flaxformer.system.digests import JsonObject

FORMAT = 1
"""Version of the object; raised when a field changes its meaning."""


def study_json(analysis: Analysis, folder: Path, overrides: tuple[str, ...] = ()) -> JsonObject:
    """Return the answer of a study; numbers that are not finite are None.

    Args:
      analysis: the study's analysis.
      folder: its folder.
      overrides: changes of the study's file that its last command made.
    """
    study = analysis.study
    return {
        "format": FORMAT,
        "study": study.name,
        "folder": str(folder),
        "question": study.question,
        "answer": verdicts.verdict(analysis).strip(),
        "metric": study.metric,
        "unit": study.unit,
        "goal": study.goal,
        "seeds": list(study.seeds),
        "missing": analysis.missing,
        "failed": len(analysis.failed_runs),
        "claims": [claim_json(claim) for claim in analysis.claims],
        "withdrawn": [claim_json(claim) for claim in analysis.withdrawn],
        "arms": [
            {"labels": dict(arm.labels), **_estimate(arm.estimate)} for arm in [*analysis.arms, *analysis.quantities]
        ],
        "effects": effects_json(analysis),
        "overrides": list(overrides),
        "warnings": list(analysis.warnings),
        "limits": list(analysis.limits),
    }


def claim_json(claim: JudgedClaim) -> JsonObject:
    """Return a claim with its test: the effect is positive in the claimed direction."""
    judged = claim.judgement
    return {
        "claim": claim.text,
        "kind": claim.kind,
        "verdict": judged.verdict,
        "exploratory": claim.is_exploratory,
        "effect": finite(judged.effect.mean),
        **_numbers(judged.effect, ("low", "high")),
        "unit": claim.unit,
        "n": judged.effect.n,
        **_numbers(judged, ("p", "p_holm", "detectable")),
        "qualifications": verdicts.qualifications(claim),
    }


def comparison_json(comparison: Comparison, folders: tuple[Path, Path]) -> JsonObject:
    """Return two studies side by side; what one of them lacks is None, and differences are B − A, paired by seed."""
    sides = zip("ab", (comparison.a, comparison.b), folders, strict=True)
    return {
        "format": FORMAT,
        **{
            side: {
                "study": analysis.study.name,
                "folder": str(folder),
                "question": analysis.study.question,
                "metric": analysis.study.metric,
                "unit": analysis.study.unit,
                "missing": analysis.missing,
            }
            for side, analysis, folder in sides
        },
        "settings": comparison.settings,
        "recipes": comparison.recipes,
        "arms": [
            {
                "labels": dict(pair.labels),
                "a": pair.a and _estimate(pair.a.estimate),
                "b": pair.b and _estimate(pair.b.estimate),
                "difference": _estimate(pair.difference),
            }
            for pair in comparison.arms
        ],
        "claims": [
            {"claim": pair.text, "a": pair.a and claim_json(pair.a), "b": pair.b and claim_json(pair.b)}
            for pair in comparison.claims
        ],
    }


def _estimate(estimate: Estimate) -> JsonObject:
    return {**_numbers(estimate, ("mean", "low", "high", "sd")), "n": estimate.n}


def _numbers(source: object, names: tuple[str, ...]) -> JsonObject:
    return {name: finite(getattr(source, name)) for name in names}
