"""The command `flaxformer improve FILE`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console

from flaxformer.cli.arguments import Improve
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.show import show_ledger
from flaxformer.jobs.progress import Totals, follow
from flaxformer.ledger.declare import Ledger
from flaxformer.ledger.improve import Looked, OpenLedger
from flaxformer.ledger.opening import check_first, open_ledger
from flaxformer.ledger.page import evidence_line
from flaxformer.runner.events import Compiling, Event, EventsWithResult, Message
from flaxformer.runner.execution import Execution
from flaxformer.runner.launchers.options import Share
from flaxformer.study.load import load
from flaxformer.system.python_files import find_experiment


def main(arguments: Improve, console: Console) -> int:
    """Make an attempt, go on with one, end one, or confirm the best recipe; then show the ledger."""
    ledger = load(arguments.file, "ledger", Ledger).in_file(find_experiment(arguments.file))
    root = arguments.output or Path("runs") / ledger.name
    execution = Execution(devices=arguments.devices)
    share = None if arguments.share is None else Share.parse(arguments.share)
    if arguments.overrides or arguments.candidate:
        check_first(ledger, root, arguments.overrides, arguments.candidate)
    opened = open_ledger(ledger, root, execution, arguments.trust_code, arguments.budget or "", share)
    shown = Console(quiet=True) if arguments.json else console
    failed = 0
    if arguments.withdraw:
        opened.withdraw()
    elif arguments.confirm:
        failed = follow(opened.confirm(), shown, _totals(ledger, ledger.confirmation_seeds))
    else:
        failed = _attempt(arguments, opened, shown)
    results = opened.results()
    show_ledger(results, console, arguments.json)
    return FAILED if failed else 0


def _attempt(arguments: Improve, opened: OpenLedger, console: Console) -> int:
    """Declare the attempt of a command, or take the one that has no verdict yet; train it. Return the failed runs."""
    if arguments.overrides or arguments.candidate:
        reason = str(arguments.reason).strip()
        rates = arguments.tune or ()
        proposed = EventsWithResult(opened.propose(arguments.overrides, arguments.candidate, reason, rates))
        runs = len(rates) * opened.ledger.tuning_seeds
        follow(proposed, console, Totals(runs, runs * opened.ledger.start.training.steps))
        entry = proposed.result
    else:
        unfinished = opened.begin().unfinished
        if unfinished is None:
            return 0
        entry = unfinished.entry
    if opened.results().attempts[entry.number - 1].verdict is not None:
        console.print(
            f"attempt {entry.number} was proposed in these words and has its verdict: nothing was trained; another "
            "--reason makes a new attempt"
        )
        return 0
    shared = "share one compiled program" if entry.programs == 1 else "have different programs"
    console.print(f"attempt {entry.number}: {entry.reason} (the recipes {shared})")
    totals = _totals(opened.ledger, opened.ledger.seeds)
    return follow(_as_messages(opened.train(entry), opened), console, totals)


def _totals(ledger: Ledger, pairs: int) -> Totals:
    """The most work that so many pairs can be."""
    return Totals(2 * pairs, 2 * pairs * ledger.start.training.steps)


def _as_messages(events: Iterable[Event | Looked], opened: OpenLedger) -> Iterator[Event]:
    """Yield events, with a sentence in place of each look."""
    begun, compiled = opened.results().begun, set()
    for event in events:
        if isinstance(event, Looked):
            if event.evidence.pairs:
                yield Message(evidence_line(begun, event.evidence))
        elif not (isinstance(event, Compiling) and event.group in compiled):  # later looks take the kept program
            compiled |= {event.group} if isinstance(event, Compiling) else set()
            yield event
