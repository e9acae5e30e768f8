"""Output that commands for studies share: the report, paths, damaged files and failed runs."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.parsing import overrides_of
from flaxformer.cli.terminal import print_json
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.places import REPORT
from flaxformer.store.store import Store, read_lines
from flaxformer.system.wording import count_of

if TYPE_CHECKING:  # they import JAX and Polars, which some of these commands do without
    from flaxformer.ledger.reading import LedgerResults
    from flaxformer.tasks import Task


def show_report(store: Store, console: Console, is_full: bool = False, as_json: bool = False) -> int:
    """Write the report's files, and print the answer.

    Args:
      store: the study's folder.
      console: the terminal.
      is_full: print all that a terminal shows of the report before the answer, which stands in the last lines.
      as_json: print the answer as one object of JSON, on standard output, and nothing else.

    Returns:
      The number of runs that failed.
    """
    from flaxformer.report import terminal  # here, since importing matplotlib takes a third of a second
    from flaxformer.report.files import write

    analysis = write(store)
    if as_json:
        from flaxformer.report.as_json import study_json

        answer = study_json(analysis, store.root, overrides_of(read_lines(store.root / LAUNCHES)))
        print_json(answer)
        return len(analysis.failed_runs)
    console.print()
    if is_full:
        terminal.show(console, analysis)
        console.print()
    terminal.show_answer(console, analysis, overrides_of(read_lines(store.root / LAUNCHES)))
    if not is_full:
        console.print("Effects, costs, tables and every limit: the report, or --full.", style="dim")
    console.print()
    for name, what in store.corrupt_files.items():
        console.print(damage_line(store.root / name, what))
    files = {"Table": store.root / "results.parquet", "Figures": store.root / "figures"} if is_full else {}
    show_paths(console, files | {"Report": store.root / REPORT})
    return len(analysis.failed_runs)


def show_job(folder: Path, console: Console) -> None:
    """Write the page of a training job, and print its state, scores, and the commands that follow."""
    from flaxformer.report.job import write_job_report

    job = write_job_report(folder)
    console.print()
    console.print(f"{job.folder}: {job.state}", soft_wrap=True)
    for line in [*job.scores, *([f"goodput {job.goodput}"] if job.goodput else [])]:
        console.print(line)
    for command in job.next_commands:
        console.print(f"Next: {command}", soft_wrap=True)
    show_paths(console, {"Report": folder / REPORT})


def show_ledger(results: "LedgerResults", console: Console, as_json: bool = False) -> None:
    """Write the page of a ledger, and print its answer, the last attempts, and what limits them; or its JSON alone."""
    from flaxformer.ledger import page as ledger_page

    page = ledger_page.write_page(results)
    if as_json:
        print_json(ledger_page.as_json(results))
        return
    for line in ledger_page.describe(results):
        console.print(line)
    console.print()
    show_paths(console, {"Report": page})


def show_data(task: "Task", console: Console) -> None:
    """Print the sentences of a task on its data, and some training examples as the model reads them."""
    rows = task.preview()
    title = ["Training rows, as the model reads them:"] if rows else []
    for line in (*task.notes(), *title, *(f"  {row}" for row in rows)):
        console.print(line)


def show_paths(console: Console, paths: dict[str, Path]) -> None:
    """Print one path per line, each whole."""
    width = max(map(len, paths)) + 2
    for name, path in paths.items():
        console.print(f"{name + ':':{width}}{path}", soft_wrap=True)


def damage_line(path: Path, what: str) -> Text:
    """A warning of a damaged file."""
    again = "; 'run' trains its runs again" if path.parent.name == "groups" else ""
    return Text(f"{path} is damaged ({what}){again}", style="yellow")


def exit_code(failed: int, console: Console) -> int:
    """The exit code of a command after this many failed runs, with a message if there are any."""
    if failed:
        console.print(
            f"{count_of(failed, 'run')} failed; the report has the tracebacks; --retry-failed trains them again.",
            style="red",
        )
    return FAILED if failed else 0
