"""Stored results of cases, from which the table is written without the files of the cases."""

import collections
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flaxformer.analysis.analysis import Analysis, analyse
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report import phrasing, verdicts
from flaxformer.report.index import Entry
from flaxformer.store.store import Store
from flaxformer.system.digests import read_or_empty
from flaxformer.system.errors import UserError
from flaxformer.system.files import make_folder, write_atomically
from flaxformer.system.json_reader import parse_json
from flaxformer.system.links import check_file, output_folder
from flaxformer.system.typed_data import FiniteNumber, Int64, Record, convert, plain
from flaxformer.system.wording import count_of

if TYPE_CHECKING:  # a report, which reads records, needs no JAX
    from flaxformer.claims.run import CaseResult

NAME = "case.json"
OF_FACTS = {"supported": "holds", "refuted": "does not hold"}
"""Verdicts of exact values, which no seed changes, by those of estimates."""


class StoredCase(Record, frozen=True, kw_only=True):
    """Content of `NAME`."""

    number: Int64
    claim: str
    source: str
    seconds: FiniteNumber
    quick: bool
    evidence: tuple[str, ...]
    """Folders of its probes and studies."""
    failure: str


@dataclasses.dataclass(frozen=True)
class Statement:
    """One tested statement of a case."""

    tested: str
    measured: str
    claimed: str
    n: int
    verdict: str
    declared: str = "–"
    """Time of the declaration relative to the data."""
    is_fact: bool = False
    """True for an exact value of a program, false for an estimate from seeds."""
    folder: Path | None = None
    """Output folder of the probe or study."""


@dataclasses.dataclass(frozen=True)
class CaseRecord:
    """Results of one case: every tested statement."""

    number: int
    claim: str
    source: str
    seconds: float
    quick: bool
    lines: Sequence[Statement]


def of(outcome: "CaseResult", quick: bool) -> CaseRecord:
    """Return the record of a case that has just been measured."""
    case = outcome.case
    lines = statements(outcome.analyses, outcome.failure)
    return CaseRecord(case.number, case.claim, case.source, outcome.seconds, quick, lines)


def keep(root: Path, outcomes: "Sequence[CaseResult]", quick: bool) -> None:
    """Store each case of a launch."""
    output_folder(root)
    for outcome in outcomes:
        case = outcome.case
        stored = StoredCase(
            number=case.number,
            claim=case.claim,
            source=case.source,
            seconds=outcome.seconds,
            quick=quick,
            evidence=tuple(folder.name for folder, _ in outcome.analyses),
            failure=outcome.failure,
        )
        make_folder(root / case.name)
        write_atomically(root / case.name / NAME, json.dumps(plain(stored), indent=1, ensure_ascii=False).encode())


def holds_claims(root: Path) -> bool:
    """True if a folder holds results of claims."""
    return any(root.glob(f"*/{NAME}"))


def read_all(root: Path, entries: Sequence[Entry] = ()) -> list[CaseRecord]:
    """Return all cases of a folder, from this launch and earlier ones, by number.

    Args:
      root: the folder.
      entries: summaries of its studies and probes, whose analyses are used.
    """
    records, known = [], {entry.report.parent: entry.analysis for entry in entries}
    for path in root.glob(f"*/{NAME}"):
        case = _read(path)
        evidence = [path.parent / name for name in case.evidence]
        present = [folder for folder in evidence if (folder / "study.json").exists()]
        analyses = [(folder, known.get(folder) or analyse(Store(folder))) for folder in present]
        lines = statements(analyses, case.failure)
        records.append(CaseRecord(case.number, case.claim, case.source, case.seconds, case.quick, lines))
    return sorted(records, key=lambda record: record.number)


def _read(path: Path) -> StoredCase:
    """Return a stored case.

    Raises:
      UserError: the file is not one that `keep` wrote, or is a symbolic link.
    """
    check_file(path)
    try:
        case: StoredCase = convert(parse_json(read_or_empty(path)), StoredCase)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and run the claim again") from None
    return case


def statements(analyses: Sequence[tuple[Path, Analysis]], failure: str = "") -> list[Statement]:
    """Return each tested statement of the evidence, and the failure, if any."""
    lines = [
        Statement(
            claim.text,
            phrasing.effect(claim),
            phrasing.claim_text(claim),
            claim.judgement.effect.n,
            _verdict(claim, analysis),
            verdicts.when_declared(claim),
            analysis.exact,
            folder,
        )
        for folder, analysis in analyses
        for claim in [*analysis.claims, *analysis.withdrawn]
    ]
    return lines + ([Statement(failure, "–", "–", 0, "failed")] if failure else [])


def _verdict(claim: JudgedClaim, analysis: Analysis) -> str:
    """Return the verdict in the words of an estimate or of a fact."""
    verdict = verdicts.verdict_of(claim)
    for word, of_fact in OF_FACTS.items() if analysis.exact else ():
        verdict = verdict.replace(word, of_fact)
    return verdict


def totals(records: Iterable[CaseRecord]) -> str:
    """Return the numbers of verdicts, of facts and of estimates apart."""
    lines = [line for case in records for line in case.lines]
    kinds = ("fact", [x for x in lines if x.is_fact]), ("estimate", [x for x in lines if not x.is_fact])
    parts = [_total(kind, statements) for kind, statements in kinds if statements]
    return f"{count_of(len(lines), 'tested statement')}: {'; '.join(parts) or 'none yet'}."


def _total(kind: str, lines: Sequence[Statement]) -> str:
    """Return the numbers of verdicts of one kind, in the order of `MARKS`, others after them."""
    counts = collections.Counter(line.verdict for line in lines)
    words = dict.fromkeys([*(OF_FACTS.values() if kind == "fact" else phrasing.MARKS), *counts])
    several = {"holds": "hold", "does not hold": "do not hold"}
    counted = ", ".join(
        f"{counts[word]} {several.get(word, word) if counts[word] > 1 else word}" for word in words if counts[word]
    )
    return f"{count_of(len(lines), kind)} ({counted})"
