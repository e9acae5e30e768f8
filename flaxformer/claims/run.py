"""Running a case: every probe and study of it that is not done yet, and what they say together."""

import dataclasses
import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from flaxformer.claims.case import Case, Evidence
from flaxformer.report.write import write
from flaxformer.runner.execute import Execution
from flaxformer.runner.launch import missing, run
from flaxformer.runner.probes import run_probe
from flaxformer.runner.progress import follow
from flaxformer.store.provenance import provenance
from flaxformer.store.store import Store, read_lines
from flaxformer.struct import UserError
from flaxformer.study.analysis import Analysis
from flaxformer.study.probe import Probe
from flaxformer.user_code.changes import OnCodeChange


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """Result of a case's evidence, each with the folder of its report; and what failed, if anything did."""

    case: Case
    analyses: Sequence[tuple[Path, Analysis]]
    seconds: float
    """Spent on it, in this launch and in earlier ones."""
    failure: str = ""


def run_case(
    case: Case,
    folder: Path,
    execution: Execution,
    quick: bool,
    console: Console,
    on_code_change: OnCodeChange = "refuse",
) -> CaseResult:
    """Measure and train what is missing, and write each report; an error ends this case alone."""
    console.print(Text.assemble((f"{case.number}  ", "bold"), (case.claim, "bold"), ("  ", ""), (case.source, "dim")))
    analyses, failure = [], ""
    for evidence in (case.quick if quick else case.evidence) or ():
        store, began = Store(folder / evidence.name), time.perf_counter()
        try:
            worked = _work(evidence, store, execution, console, on_code_change)
            analyses.append((store.root, write(store)))
            failure = failure or _failed(analyses[-1][1])
        except UserError as error:
            worked, failure = True, str(error)
        except Exception as error:
            store.root.mkdir(parents=True, exist_ok=True)
            (store.root / "failure.txt").write_text(traceback.format_exc())
            worked, failure = True, f"{type(error).__name__}: {error}; see {store.root / 'failure.txt'}"
        if worked:
            _note(folder, evidence.name, time.perf_counter() - began)
    if failure:
        console.print(Text(f"failed: {failure}", style="red"))
    return CaseResult(case, analyses, sum(line["seconds"] for line in read_lines(folder / "time.jsonl")), failure)


def _work(
    evidence: Evidence, store: Store, execution: Execution, console: Console, on_code_change: OnCodeChange
) -> bool:
    """Run what is missing of a probe or a study; whether there was anything."""
    if isinstance(evidence, Probe):
        measured = run_probe(evidence, store, on_code_change)
        if next(measured, None) is None:
            return False
        store.record_launch(provenance())
        list(measured)
        return True
    execution = dataclasses.replace(execution, output=store.root)
    todo = missing(evidence, store, retry_failed=True)
    runs = sum(len(group.trials) for group in todo)
    steps = sum(len(group.trials) * group.example.training.steps for group in todo)
    events = run(evidence, execution, retry_failed=True, on_code_change=on_code_change)
    follow(events, console, runs, steps)
    return runs > 0


def _failed(analysis: Analysis) -> str:
    return f"{len(analysis.failed)} runs failed: {analysis.failed[0]['cause']}" if analysis.failed else ""


def _note(folder: Path, name: str, seconds: float) -> None:
    """Add the time that was spent, to be summed over launches."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "time.jsonl").open("a") as file:
        file.write(json.dumps({"evidence": name, "seconds": seconds}) + "\n")
