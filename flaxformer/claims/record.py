"""Record of each case in a folder of claims, so that its table can be written without the cases' files."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from flaxformer.claims.run import CaseResult
from flaxformer.files import write_atomically
from flaxformer.report import phrasing
from flaxformer.store.store import Store
from flaxformer.study.analysis import Analysis, analyse

NAME = "case.json"


@dataclasses.dataclass(frozen=True)
class Statement:
    """One tested form of a claim."""

    tested: str
    measured: str
    claimed: str
    n: int
    verdict: str
    folder: Path | None = None
    """Path of its report."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One case with all that was tested."""

    number: int
    claim: str
    source: str
    seconds: float
    quick: bool
    lines: Sequence[Statement]


def of(outcome: CaseResult, quick: bool) -> Record:
    """The record of what was measured just now."""
    case = outcome.case
    lines = _lines(outcome.analyses, outcome.failure)
    return Record(case.number, case.claim, case.source, outcome.seconds, quick, lines)


def keep(root: Path, outcomes: Sequence[CaseResult], quick: bool) -> None:
    """Write down each case of a launch."""
    for outcome in outcomes:
        case = outcome.case
        own = {
            "number": case.number,
            "claim": case.claim,
            "source": case.source,
            "seconds": outcome.seconds,
            "quick": quick,
            "evidence": [folder.name for folder, _ in outcome.analyses],
            "failure": outcome.failure,
        }
        (root / case.name).mkdir(parents=True, exist_ok=True)
        write_atomically(root / case.name / NAME, json.dumps(own, indent=1, ensure_ascii=False).encode())


def holds_claims(root: Path) -> bool:
    """True if a folder is one of claims."""
    return any(root.glob(f"*/{NAME}"))


def read_all(root: Path) -> list[Record]:
    """Every case of the folder, of this launch and of earlier ones, by number."""
    records = []
    for path in root.glob(f"*/{NAME}"):
        own = json.loads(path.read_bytes())
        evidence = [path.parent / name for name in own.pop("evidence")]
        analyses = [(folder, analyse(Store(folder))) for folder in evidence if (folder / "study.json").exists()]
        records.append(Record(lines=_lines(analyses, own.pop("failure")), **own))
    return sorted(records, key=lambda record: record.number)


def _lines(analyses: Sequence[tuple[Path, Analysis]], failure: str) -> list[Statement]:
    """Every claim of the evidence, and what went wrong."""
    lines = [
        Statement(
            claim.text,
            phrasing.effect(claim),
            phrasing.claimed(claim),
            claim.judgement.effect.n,
            claim.judgement.verdict,
            folder,
        )
        for folder, analysis in analyses
        for claim in analysis.claims
    ]
    return lines + ([Statement(failure, "–", "–", 0, "failed")] if failure else [])
