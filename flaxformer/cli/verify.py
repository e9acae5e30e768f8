"""The command `flaxformer verify DIR`."""

import json
import secrets
from collections.abc import Generator

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flaxformer.analysis.declaration_limits import verification
from flaxformer.cli.arguments import Verify
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.copied_study import copied_study, last_command
from flaxformer.devices.sharding import parse_devices
from flaxformer.runner.execute import StudyEvent
from flaxformer.runner.execution import Execution
from flaxformer.runner.progress import follow
from flaxformer.runner.verification import TrialSample, choose, derived_differences, train_again
from flaxformer.store import declaration_log, provenance
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.store import Store, read_lines
from flaxformer.study.plan import declaration
from flaxformer.study.seeds import LAST
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError
from flaxformer.system.wording import counted


def main(arguments: Verify, console: Console) -> int:
    """Train some finished trials of a folder again, show what differs, and record the verification in its log."""
    store = Store(arguments.directory)
    known = store.declaration
    if known["kind"] != "study":
        raise UserError(f"{store.root} holds a probe; expected a study")
    seed = secrets.randbelow(LAST) if arguments.seed is None else arguments.seed
    if arguments.trials < 1 or not 0 <= seed <= LAST:
        raise UserError(f"trials is {arguments.trials}, seed {seed}; expected at least 1, and 0 to {LAST:,}")
    study = copied_study(store, arguments, known["seeds"])
    declared, rows = declaration(study), store.rows()
    choice = choose(declared, rows, arguments.trials, seed)
    check(store, choice)
    if not arguments.json:
        show_choice(console, store, choice, seed)
    chosen = [rows[name] for name in choice.trials]
    events = EventsWithResult(train_again(study, declared, chosen, execution_of(store, arguments)))
    quiet = Console(quiet=True) if arguments.json else console
    steps = sum(row.stopped_at or study.baseline.training.steps for row in chosen)
    follow(events, quiet, len(chosen), steps)
    different = events.found | derived_differences(store, study, declared, rows)
    event = {"seed": seed, "trials": choice.trials, "finished": choice.finished, "different": different}
    event |= {"source": provenance.code(study.file)["source"]}
    is_recorded = declaration_log.record_event(store, "verification", event)
    if arguments.json:
        print(json.dumps(event | {"other_code": choice.other_code, "recorded": is_recorded}, indent=1))
    else:
        show(console, event, is_recorded)
    return FAILED if different else 0


class EventsWithResult:
    """Events of a generator, and what it returns."""

    def __init__(self, events: Generator[StudyEvent, None, dict[str, str]]) -> None:
        self.events, self.found = events, dict[str, str]()

    def __iter__(self) -> Generator[StudyEvent]:
        self.found = yield from self.events


def check(store: Store, choice: TrialSample) -> None:
    """Raise UserError if no trial can be verified."""
    if not choice.finished:
        raise UserError(f"{store.root} has no finished trial; expected the results of 'flaxformer run'")
    if not choice.trials:
        raise UserError(
            f"{store.root} has {counted(choice.finished, 'finished trial')}, none of them of this recipe and code; "
            "give the file with --file, the overrides of the first run after DIR, and use the same package version"
        )


def execution_of(store: Store, arguments: Verify) -> Execution:
    """The settings of the last recorded command that can change a bit: the layout of layers, and the mesh."""
    command = last_command(read_lines(store.root / LAUNCHES))
    mesh = arguments.mesh or getattr(command, "mesh", None)
    return Execution(
        devices=arguments.devices,
        layout=getattr(command, "layout", "auto"),
        mesh=None if mesh is None else parse_devices(mesh),
        save_minutes=0.0,
    )


def show_choice(console: Console, store: Store, choice: TrialSample, seed: int) -> None:
    """Print what is trained again, and what cannot be verified."""
    n = len(choice.trials)
    console.print(
        f"{store.root}: {n} of {counted(choice.finished, 'finished trial')} to train again (--seed {seed})",
        highlight=False,
        soft_wrap=True,
    )
    if choice.other_code:
        text = f"{counted(len(choice.other_code), 'trial')} of another recipe or code cannot be verified: "
        console.print(Text(text + ", ".join(choice.other_code[:6]), style="yellow"))


def show(console: Console, event: JsonObject, is_recorded: bool) -> None:
    """Print the result, and the numbers that differ."""
    console.print(Text(f"{verification(event)}.", style="red" if event["different"] else "green"))
    for trial, what in event["different"].items():
        console.print(Padding(Text(f"{trial}: {what}"), (0, 0, 0, 2), expand=False))
    if event["different"]:
        console.print(
            "Another machine or version of the libraries gives differences of rounding; larger ones are another run's."
        )
    if not is_recorded:
        console.print(Text("The folder cannot be written, so its report does not say so.", style="yellow"))
