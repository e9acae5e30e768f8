"""The answer of a study as plain data, for programs: claims with their verdicts, arms, and what limits them."""

from pathlib import Path

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report import verdicts
from flaxformer.report.effect_tables import effects_json
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
            {"labels": dict(arm.labels), **_numbers(arm.estimate, ("mean", "low", "high", "sd")), "n": arm.estimate.n}
            for arm in [*analysis.arms, *analysis.quantities]
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


def _numbers(source: object, names: tuple[str, ...]) -> JsonObject:
    return {name: finite(getattr(source, name)) for name in names}
