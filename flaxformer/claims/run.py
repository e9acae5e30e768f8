"""Execution of a case: its probes and studies that have no results yet, and their analyses."""

import dataclasses
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from flaxformer.analysis.analysis import Analysis
from flaxformer.claims.case import Case, Evidence
from flaxformer.jobs.progress import Totals, follow
from flaxformer.report.files import write
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import missing, run_plan
from flaxformer.runner.probes import run_probe
from flaxformer.store.provenance import provenance
from flaxformer.store.records import append_line
from flaxformer.store.store import Store, read_lines
from flaxformer.study.plan import StudyPlan
from flaxformer.study.probe import Probe
from flaxformer.system.errors import UserError
from flaxformer.system.files import make_folder, write_atomically
from flaxformer.system.links import check_file, output_folder
from flaxformer.system.wording import count_of

TIMES = "time.jsonl"
"""File in a case's folder: the time spent by each launch."""


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """Analyses of the evidence of a case, each with its output folder, and the failure, if any."""

    case: Case
    analyses: Sequence[tuple[Path, Analysis]]
    seconds: float
    """Time spent on the case, over all launches."""
    failure: str = ""


def run_case(
    case: Case,
    folder: Path,
    execution: Execution,
    quick: bool,
    console: Console,
    seeds: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> CaseResult:
    """Measure and train what is missing, and write each report; an error ends only this case.

    Args:
      case: the claim with its evidence.
      folder: output folder of the case.
      execution: how studies are trained; those that failed are trained again.
      quick: use the weaker evidence.
      console: where progress is shown.
      seeds: function from the seeds of the evidence to those to use; exact probes, which need one, keep theirs.
    """
    output_folder(folder.parent)
    check_file(folder / TIMES)
    console.print(Text.assemble((f"{case.number}  ", "bold"), (case.claim, "bold"), ("  ", ""), (case.source, "dim")))
    analyses, failure = [], ""
    for declared in (case.quick if quick else case.evidence) or ():
        evidence = _with_seeds(declared, seeds)
        store, began = Store(folder / evidence.name), time.perf_counter()
        try:
            worked = _work(evidence, store, execution, console)
            analyses.append((store.root, write(store)))
            failure = failure or _describe_failures(analyses[-1][1])
        except UserError as error:
            worked, failure = True, str(error)
        except Exception as error:
            make_folder(store.root)
            write_atomically(store.root / "failure.txt", traceback.format_exc().encode(errors="replace"))
            worked, failure = True, f"{type(error).__name__}: {error}; see {store.root / 'failure.txt'}"
        if worked:
            _note(folder, evidence.name, time.perf_counter() - began)
    if failure:
        console.print(Text(f"failed: {failure}", style="red"))
    return CaseResult(case, analyses, sum(line["seconds"] for line in read_lines(folder / TIMES)), failure)


def _work(evidence: Evidence, store: Store, execution: Execution, console: Console) -> bool:
    """Run what is missing of a probe or study; return true if there was anything."""
    if isinstance(evidence, Probe):
        measured = run_probe(evidence, store, execution.on_code_change)
        if next(measured, None) is None:
            return False
        store.record_launch(provenance())
        list(measured)
        return True
    execution = dataclasses.replace(execution, output=store.root, retry_failed=True)
    plan = StudyPlan(evidence)
    todo = missing(plan, store, retry_failed=True)
    runs = sum(len(group.trials) for group in todo)
    steps = sum(len(group.trials) * group.example.training.steps for group in todo)
    follow(run_plan(plan, execution), console, Totals(runs, steps))
    return runs > 0


def _with_seeds(evidence: Evidence, seeds: Callable[[Sequence[int]], Sequence[int]] | None) -> Evidence:
    """The evidence at other seeds, if they are given and it depends on seeds."""
    is_exact = isinstance(evidence, Probe) and evidence.exact
    return evidence if seeds is None or is_exact else dataclasses.replace(evidence, seeds=seeds(evidence.seeds))


def _describe_failures(analysis: Analysis) -> str:
    failed = analysis.failed_runs
    return f"{count_of(len(failed), 'run')} failed: {failed[0]['cause']}" if failed else ""


def _note(folder: Path, name: str, seconds: float) -> None:
    """Record the time spent, which is summed over launches."""
    make_folder(folder)
    append_line(folder / TIMES, {"evidence": name, "seconds": seconds})
