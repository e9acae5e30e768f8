"""The command `flaxformer replicate DIR`."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.claim_history import seeds_in_words
from flaxformer.analysis.replication import (
    ReplicatedClaim,
    check_fresh,
    check_same_recipes,
    compare_claims,
    fresh_seeds,
    used_seeds,
)
from flaxformer.claims import record
from flaxformer.claims.case import find_cases
from flaxformer.claims.run import run_case
from flaxformer.claims.table import write as write_claims
from flaxformer.cli.arguments import Replicate
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.show import exit_code, show_paths
from flaxformer.cli.study import copied_study
from flaxformer.jobs.progress import Totals, follow
from flaxformer.report import phrasing, replication
from flaxformer.report.files import write
from flaxformer.report.verdicts import marked_verdict
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import missing, plan_of, run_plan
from flaxformer.runner.stages import remaining_work
from flaxformer.store import declaration_log
from flaxformer.store.log_entries import Replication
from flaxformer.store.places import REPORT
from flaxformer.store.store import Store
from flaxformer.study.seeds import parse_seeds
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of


def main(arguments: Replicate, console: Console) -> int:
    """Run the study, or the claims, of a folder again at fresh seeds, and show both results side by side."""
    if record.holds_claims(arguments.directory):
        return replicate_claims(arguments, console)
    return replicate_study(arguments, console)


def output_of(arguments: Replicate) -> Path:
    """The folder of the replication, by default beside the first one.

    Raises:
      UserError: it is the folder of the first results.
    """
    first = arguments.directory if arguments.directory.name else arguments.directory.resolve()
    seeds = "" if arguments.seeds is None else f"-seeds-{''.join(arguments.seeds.split())}"
    name = f"{first.name}-replication{seeds}".replace(":", "to").replace(",", "-")
    output = arguments.output or first.parent / name
    if output.resolve() == first.resolve():
        raise UserError(f"output is {output}, which holds the first results; expected another folder")
    return output


def replicate_study(arguments: Replicate, console: Console) -> int:
    """Run the copy of a study's file that its folder holds, at fresh seeds."""
    store = Store(arguments.directory)
    first = analyse(store)
    if first.study.kind != "study":
        raise UserError(f"{store.root} holds a probe; expected a study, or the folder of 'flaxformer claims'")
    used = used_seeds(store, first)
    seeds = fresh_seeds(first.study.seeds, used) if arguments.seeds is None else parse_seeds(arguments.seeds)
    check_fresh(seeds, used, store.root)
    study = copied_study(store, arguments, seeds)
    output = output_of(arguments)
    execution = Execution(output=output, devices=arguments.devices)
    plan = plan_of(study, execution)
    source = "the copy of the study's file" if arguments.file is None else str(arguments.file)
    check_same_recipes(first.study, plan.declaration, source)
    fresh_store = Store(output)
    is_listed = list_attempt(console, store, seeds, output)
    todo = sum(len(group.trials) for group in missing(plan, fresh_store))
    console.print(f"{study.name} at the seeds {seeds_in_words(seeds)}: {count_of(todo, 'run')} to train")
    console.print(f"Results in {output}", soft_wrap=True)
    if is_listed:
        console.print(f"The report of {store.root} lists this attempt", soft_wrap=True)
    follow(run_plan(plan, execution), console, Totals(*remaining_work(plan, execution)))
    fresh = write(fresh_store)
    claims = compare_claims(first, fresh)
    is_listed = list_attempt(console, store, seeds, output, claims)
    page = show(console, output, study.question, claims)
    first_report = {"First report": store.root / REPORT} if is_listed else {}
    show_paths(console, {"Report": fresh_store.root / REPORT, "Replication": page} | first_report)
    return exit_code(len(fresh.failed_runs), console)


def list_attempt(
    console: Console, store: Store, seeds: Sequence[int], output: Path, claims: Sequence[ReplicatedClaim] | None = None
) -> bool:
    """Record an attempt in the first folder, and write its report again, which lists it; print why it does not.

    Args:
      claims: the claims of a finished attempt; None before it is trained.

    Returns:
      True if the report lists the attempt.
    """
    if not record_attempt(store, seeds, output, claims):
        why = f"{store.root} cannot be written, or has no log; its report does not list this attempt."
    else:
        try:
            write(store)
            return True
        except (UserError, OSError) as error:
            why = f"{store.root} lists this attempt after 'flaxformer report {store.root}' ({error})."
    console.print(Text(why, style="yellow"), soft_wrap=True)
    return False


def record_attempt(
    store: Store, seeds: Sequence[int], output: Path, claims: Sequence[ReplicatedClaim] | None = None
) -> bool:
    """Record an attempt in the log of the first folder, unless it is there; False if the folder cannot be written."""
    verdicts = None if claims is None else {claim.first.text: str(claim.fresh.judgement.verdict) for claim in claims}
    event = Replication(seeds=tuple(seeds), folder=output.name, verdicts=verdicts)
    known = [attempt for attempt in declaration_log.read(store).of(Replication) if attempt.seeds == event.seeds]
    is_known = any(attempt.folder == event.folder and verdicts in (None, attempt.verdicts) for attempt in known)
    return is_known or declaration_log.record_event(store, event)


def replicate_claims(arguments: Replicate, console: Console) -> int:
    """Test the claims in the folder of 'flaxformer claims' at fresh seeds."""
    root, output = arguments.directory, output_of(arguments)
    records = {recorded.number: recorded for recorded in record.read_all(root)}
    cases = [case for case in find_cases(arguments.folder) if case.number in records]
    fixed_seeds = None if arguments.seeds is None else parse_seeds(arguments.seeds)
    used = {case.number: _used_in(root / case.name) for case in cases}
    if fixed_seeds is not None:
        for case in cases:
            check_fresh(fixed_seeds, used[case.number], root / case.name)
    outcomes, claims = [], []
    for case in cases:

        def seeds(declared: Sequence[int], number: int = case.number) -> Sequence[int]:
            return fresh_seeds(declared, used[number]) if fixed_seeds is None else fixed_seeds

        execution, quick = Execution(devices=arguments.devices), records[case.number].quick
        outcomes.append(run_case(case, output / case.name, execution, quick, console, seeds=seeds))
        for folder, fresh in outcomes[-1].analyses:
            before = Store(root / case.name / folder.name)
            if not fresh.exact and (before.root / "study.json").exists():
                claims += (replicated := compare_claims(analyse(before), fresh))
                list_attempt(console, before, fresh.study.seeds, output, replicated)
    for quick in (False, True):
        selected = [outcome for outcome in outcomes if records[outcome.case.number].quick is quick]
        if selected:
            write_claims(output, selected, quick)
    page = show(console, output, "Do the claims replicate?", claims)
    show_paths(console, {"Claims": output / "index.html", "Replication": page})
    return FAILED if any(outcome.failure for outcome in outcomes) else 0


def _used_in(folder: Path) -> set[int]:
    """Every seed that the evidence of a case has used; exact numbers use none."""
    stores = [Store(path.parent) for path in folder.glob("*/study.json")]
    analyses = [(store, analyse(store)) for store in stores]
    return {seed for store, analysis in analyses if not analysis.exact for seed in used_seeds(store, analysis)}


def show(console: Console, folder: Path, question: str, claims: Sequence[ReplicatedClaim]) -> Path:
    """Print both results of each claim, and write the page."""
    console.print()
    for replicated in claims:
        console.print(Text(replicated.first.text, style="bold"))
        remark = "" if replicated.is_predicted else "; outside the predicted range"
        for name, claim, note in (("first", replicated.first, ""), ("fresh", replicated.fresh, remark)):
            line = Text.assemble(f"{name}  ", marked_verdict(claim), f": {phrasing.finding(claim)}{note}")
            console.print(Padding(line, (0, 0, 0, 2), expand=False))
    console.print()
    console.print(Text(replication.answer(claims) if claims else "No claim depends on seeds."))
    return replication.write(folder, question, claims)
