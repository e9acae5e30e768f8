"""A study as one call, from its declaration to its results: what the command `run` and `flaxformer.run` share."""

import contextlib
import importlib
import logging
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from flaxformer.jobs.progress import Totals, follow
from flaxformer.jobs.trackers.choose import Track, trackers_of
from flaxformer.jobs.trackers.trials import track as track_trials
from flaxformer.runner.events import Event, Message
from flaxformer.runner.execution import Execution, OnError
from flaxformer.runner.launch import check_recipes, declare, missing, plan_of, run_plan, store_of
from flaxformer.runner.stages import describe_stages, is_staged, remaining_work
from flaxformer.store import remote
from flaxformer.store.columns import statuses
from flaxformer.store.places import WeightsToKeep
from flaxformer.store.store import Store
from flaxformer.study.declare import Study
from flaxformer.study.load import load_study
from flaxformer.study.plan import StudyPlan
from flaxformer.system.errors import UserError, quote
from flaxformer.system.remembered import forget
from flaxformer.system.startup import set_up
from flaxformer.system.user_code.changes import OnCodeChange
from flaxformer.system.user_code.source import is_user_module
from flaxformer.system.wording import count_of, duration
from flaxformer.training.run import Run

if TYPE_CHECKING:
    from flaxformer.report.reading import StudyResults

LOG = logging.getLogger(__name__)
BAR = 24
"""Characters of the bar in a notebook."""
SECONDS_BETWEEN_UPDATES = 0.2
"""Least time between two updates of the line in a notebook."""
OPTIONS = {
    "--output another folder": "another folder",
    "another --output": "another folder",
    r"--on-code-change (\w+)": r'on_code_change="\1"',
    r"--on-error (\w+)": r'on_error="\1"',
    "--trust-code, or trust_code=True in Python": "trust_code=True",
    "--retry-failed": "retry_failed=True",
    "--keep": "keep=",
}
"""Options that messages of the command name, and the arguments of `run` in their place."""


def run(
    study: Study | str | Path,
    folder: str | Path | None = None,
    *,
    progress: bool = True,
    keep: WeightsToKeep | None = None,
    devices: int | None = None,
    group_size: int | None = None,
    exact: bool = False,
    diagnostics: bool = False,
    profile: str | None = None,
    retry_failed: bool = False,
    on_error: OnError = "continue",
    on_code_change: OnCodeChange = "refuse",
    track: Sequence[Track] = (),
) -> "StudyResults":
    """Train the runs of a study that its folder has no result of, write the report, and return the results.

    It does what `flaxformer run` does, with the same checks and the same files: either continues what the other has
    begun. An interruption keeps what is finished or saved; the same call continues.

    >>> results = flaxformer.run(study)
    >>> results  # in a notebook: verdicts, tables and figures

    JAX has a device per core of a CPU unless it has started before; the runs are divided among its devices.

    Args:
      study: a study, or the path of a file that defines `study`.
      folder: folder of results, also one in object storage such as s3://bucket/study; runs/NAME by default.
      progress: show the progress in a terminal and in a notebook; nothing is shown elsewhere.
      keep, devices, group_size, exact, diagnostics, profile: settings of the execution (`runner.execution.Execution`).
      retry_failed: train again what failed before.
      on_error: "stop" to end after the first run that fails.
      on_code_change: "keep" or "retrain" results whose user code has changed since; "refuse" raises.
      track: trackers of the trials: "tensorboard", "wandb", "trackio", a subclass of `Tracker` in the file of the study
        by its name, or an object of one.

    Raises:
      UserError: a value that is not a study; or the folder holds another study, or results of another recipe or code.
    """
    from flaxformer.report.files import write
    from flaxformer.report.reading import StudyResults  # here, since `flaxformer run` loads them after the training

    set_up(keep_programs=False)
    forget()  # data may have changed since an earlier call
    study = _study_of(study)
    notify = remote.to_stderr if progress else LOG.info
    try:
        with contextlib.ExitStack() as opened:
            execution = Execution(
                output=None if folder is None else opened.enter_context(remote.writing(folder, notify=notify)),
                keep=keep,
                devices=devices,
                group_size=group_size,
                exact=exact,
                diagnostics=diagnostics,
                profile=profile,
                retry_failed=retry_failed,
                on_error=on_error,
                on_code_change=on_code_change,
            )
            trackers = trackers_of(track, study.file)
            plan = plan_of(study, execution)
            events = run_plan(plan, execution)
            store, lines, totals = begin(plan, execution)
            failures = _show(track_trials(events, store, trackers), lines, totals, progress)
            write(store)
            study_results = StudyResults(store.root)
    except UserError as error:
        raise UserError(_in_python(str(error))) from None
    if failures:
        warnings.warn(
            f"{count_of(failures, 'run')} of {study.name} failed: results.table has the causes in its column `cause`; "
            "retry_failed=True trains them again",
            stacklevel=2,
        )
    return study_results


def begin(plan: StudyPlan, execution: Execution, only: Sequence[str] | None = None) -> tuple[Store, list[str], Totals]:
    """Declare a study in its folder; return the folder, the work in words, and its totals.

    Raises:
      UserError: the folder holds another study, or results of another recipe or of other code.
    """
    store = store_of(plan.study, execution)
    if is_staged(plan):
        check_recipes(plan, store)
    else:
        declare(plan, store, execution.on_code_change)
    lines = [*describe(plan, execution, store, only)]
    return store, lines, Totals(*remaining_work(plan, execution, only))


def describe(plan: StudyPlan, execution: Execution, store: Store, only: Sequence[str] | None) -> Iterator[str]:
    """Yield lines that say how many runs are to be trained, how many ended before, and where the results are."""
    todo = missing(plan, store, only, execution.retry_failed)
    left = sum(len(group.trials) for group in todo)
    known = statuses(store)
    names = only or [trial.name for group in plan.groups for trial in group.trials]
    ended = Counter(known[name] == "failed" for name in names if name in known)
    clauses = [f"{count_of(left, 'run')} to train"]
    clauses[0] += f" in {count_of(len(todo), 'compiled program')} on {execution.where}" if left else ""
    clauses += [f"{ended[False]} already finished"] if ended[False] else []
    clauses += [f"{ended[True]} failed before"] if ended[True] else []
    yield f"{plan.study.name}: {', '.join(clauses)}"
    yield f"Results in {store.root}"
    yield from describe_stages(plan, execution)


def _study_of(study: object) -> Study:
    """The study with its file, if it is defined in one: the code of that file counts for the identity of its results.

    Raises:
      UserError: it is neither a study nor the path of its file.
    """
    if isinstance(study, str | Path):
        return load_study(Path(study))
    if not isinstance(study, Study):
        job = "; a Run is a training job, for flaxformer train FILE" if isinstance(study, Run) else ""
        raise UserError(f"study is {quote(study)}; expected a Study, or the path of a file that defines `study`{job}")
    if study.file is not None:
        return study
    modules = [module for module in sys.modules.copy().values() if is_user_module(module)]
    files = [module.__file__ for module in modules if any(value is study for value in [*vars(module).values()])]
    return study.in_file(Path(str(files[0]))) if files else study


def _in_python(message: str) -> str:
    """A message whose options are arguments of `run`."""
    for option, argument in OPTIONS.items():
        message = re.sub(option, argument, message)
    return message


def _show(events: Iterable[Event], lines: Sequence[str], totals: Totals, progress: bool) -> int:
    """Train; show the progress in a terminal or a notebook, if asked for; return the number of failed runs."""
    console = Console(markup=False, highlight=False)
    if progress and console.is_terminal:
        for line in lines:
            console.print(line, soft_wrap=True)
        return follow(events, console, totals)
    return follow_line(events, totals, _notebook_line(lines[0]) if progress and console.is_jupyter else None)


def follow_line(events: Iterable[Event], totals: Totals, show: Callable[[str], None] | None) -> int:
    """Show the progress in one line that is replaced; None shows nothing. Messages are warnings."""
    shown = 0.0
    for event in events:
        totals.add(event)
        if isinstance(event, Message):
            warnings.warn(_in_python(event.text), stacklevel=4)
        if show is not None and time.monotonic() - shown > SECONDS_BETWEEN_UPDATES:
            shown = time.monotonic()
            share = min(totals.steps_done / totals.steps, 1.0) if totals.steps else 1.0
            bar = "█" * round(BAR * share) + "░" * (BAR - round(BAR * share))
            show(f"{bar} {totals.line() if totals.steps_done else totals.text}")
    if show is not None and totals.done:
        show(f"{count_of(totals.done, 'run')} in {duration(totals.seconds)}")
    return totals.failed


def _notebook_line(text: str) -> Callable[[str], None]:
    """Display a text below the cell of a notebook; return the function that replaces it."""
    handle = importlib.import_module("IPython.display").display({"text/plain": text}, raw=True, display_id=True)
    return lambda replacement: handle.update({"text/plain": replacement}, raw=True)
