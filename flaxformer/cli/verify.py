"""The command `flaxformer verify DIR`."""

import secrets
from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flaxformer.analysis.declaration_limits import MOST_NAMED, verification
from flaxformer.cli.arguments import Verify
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.parsing import last_command
from flaxformer.cli.study import copied_study
from flaxformer.cli.terminal import print_json
from flaxformer.devices.sharding import Devices, parse_devices
from flaxformer.jobs.progress import Totals, follow
from flaxformer.model.layout import Layout
from flaxformer.nn.formulations import FormulationSetting
from flaxformer.runner.events import EventsWithResult
from flaxformer.runner.execution import Execution
from flaxformer.runner.rung_verification import halving_differences, rung_differences
from flaxformer.runner.verification import TrialSample, choose, derived_differences, train_again
from flaxformer.store import declaration_log, provenance
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.log_entries import Verification
from flaxformer.store.store import Store, read_lines
from flaxformer.study.plan import StudyPlan
from flaxformer.study.seeds import LAST
from flaxformer.system.errors import UserError
from flaxformer.system.typed_data import plain
from flaxformer.system.wording import count_of


def main(arguments: Verify, console: Console) -> int:
    """Train some finished trials of a folder again, show what differs, and record the verification in its log."""
    store = Store(arguments.directory)
    known = store.declaration
    if known.kind != "study":
        raise UserError(f"{store.root} holds a probe; expected a study")
    seed = secrets.randbelow(LAST) if arguments.seed is None else arguments.seed
    study = copied_study(store, arguments, known.seeds)
    plan, rows = StudyPlan(study), store.rows()
    executions = executions_of(store, arguments)
    choice = choose(plan.declaration, rows, arguments.trials, seed, executions)
    check(store, choice, len(rows))
    if not arguments.json:
        show_choice(console, store, choice, seed)
    chosen = [rows[name] for name in choice.trials]
    events = EventsWithResult(train_again(plan, chosen, executions))
    quiet = Console(quiet=True) if arguments.json else console
    steps = sum(row.stopped_at or study.baseline.training.steps for row in chosen)
    follow(events, quiet, Totals(len(chosen), steps))
    outcome, same = events.result, {name: row for name, row in rows.items() if name not in choice.not_verified}
    different = outcome.different | derived_differences(store, plan, rows)
    different |= rung_differences(store.root, study, outcome.again) | halving_differences(store.root, plan, same)
    trials = [name for name in choice.trials if name not in outcome.not_verified]
    if not trials:
        raise UserError(f"no trial could be verified: {reasons_in_words(outcome.not_verified)}")
    source = provenance.code(study.file)["source"]
    event = Verification(seed=seed, trials=tuple(trials), finished=choice.finished, different=different, source=source)
    is_recorded = declaration_log.record_event(store, event)
    if arguments.json:
        reasons = choice.not_verified | outcome.not_verified
        print_json(plain(event) | {"not_verified": reasons, "recorded": is_recorded})
    else:
        show_not_verified(console, outcome.not_verified)
        show(console, event, is_recorded)
    return FAILED if different else 0


def check(store: Store, choice: TrialSample, rows: int) -> None:
    """Raise UserError if no trial can be verified, of a folder with a number of rows."""
    if not choice.finished and rows:
        elsewhere = f"{count_of(rows, 'row')} of other arms or seeds"
        raise UserError(
            f"{store.root} has no finished trial of the study's file, and {elsewhere}; "
            "give the file as it ran with --file, or train this one with 'flaxformer run'"
        )
    if not choice.finished:
        raise UserError(f"{store.root} has no finished trial; expected the results of 'flaxformer run'")
    if not choice.trials:
        raise UserError(
            f"{store.root} has {count_of(choice.finished, 'finished trial')}, and none can be verified here: "
            f"{reasons_in_words(choice.not_verified)}; give the file with --file, the overrides of the first run after "
            "DIR, and use the same package version and kind of device"
        )


def executions_of(store: Store, arguments: Verify) -> list[Execution]:
    """The settings of the recorded commands that can change a bit, the last first: formulations, layout, and mesh.

    A folder without a recorded command has the defaults.
    """
    commands = [last_command([launch]) for launch in reversed(read_lines(store.root / LAUNCHES))]
    settings: list[tuple[FormulationSetting, Layout, Devices | None]] = []
    for command in [*filter(None, commands)] or [None]:
        mesh = arguments.mesh or getattr(command, "mesh", None)
        devices = None if mesh is None else parse_devices(mesh)
        settings.append((getattr(command, "formulations", "auto"), getattr(command, "layout", "auto"), devices))
    return [
        Execution(devices=arguments.devices, formulations=formulations, layout=layout, mesh=mesh, save_minutes=0.0)
        for formulations, layout, mesh in dict.fromkeys(settings)
    ]


def show_choice(console: Console, store: Store, choice: TrialSample, seed: int) -> None:
    """Print what is trained again, and what cannot be verified."""
    n = len(choice.trials)
    console.print(
        f"{store.root}: {n} of {count_of(choice.finished, 'finished trial')} to train again (--seed {seed})",
        soft_wrap=True,
    )
    show_not_verified(console, choice.not_verified)


def show_not_verified(console: Console, reasons: Mapping[str, str]) -> None:
    """Print the trials that cannot be verified, by reason."""
    if reasons:
        console.print(Text(f"Not verified: {reasons_in_words(reasons)}.", style="yellow"))


def reasons_in_words(reasons: Mapping[str, str]) -> str:
    """Trials that cannot be verified, in a clause per reason."""
    clauses = []
    for reason in dict.fromkeys(reasons.values()):
        names = [name for name, why in reasons.items() if why == reason]
        more = ", …" if len(names) > MOST_NAMED else ""
        clauses.append(f"{count_of(len(names), 'trial')} {reason} ({', '.join(names[:MOST_NAMED])}{more})")
    return "; ".join(clauses)


def show(console: Console, event: Verification, is_recorded: bool) -> None:
    """Print the result, and the numbers that differ."""
    console.print(Text(f"{verification(event)}.", style="red" if event.different else "green"))
    for trial, what in event.different.items():
        console.print(Padding(Text(f"{trial}: {what}"), (0, 0, 0, 2), expand=False))
    if event.different:
        console.print(
            "Another machine or version of the libraries gives differences of rounding; larger ones are another run's."
        )
    if not is_recorded:
        console.print(Text("The folder cannot be written, so its report does not say so.", style="yellow"))
