"""Work of one worker: train the trials of one job into the output folder."""

import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from flaxformer.launchers.payload import read
from flaxformer.runner.events import Compiled, Compiling, Event, Finished, Message, Progressed
from flaxformer.runner.launch import run
from flaxformer.system.wording import count_of

DONE, FAILED, USER_ERROR, INTERRUPTED = 0, 1, 2, 130
"""Exit codes of the process of a worker."""
SECONDS_BETWEEN_LINES = 15


def work(path: Path, index: int, console: Console) -> int:
    """Train the trials of a job that have no row yet, and return the number of failed runs.

    Raises:
      UserError: the payload, the study file or the output folder is invalid.
    """
    payload = read(path)
    trials, study = payload.job(index), payload.study()
    events = run(
        study,
        payload.execution,
        only=trials,
        retry_failed=payload.retry_failed,
        on_error=payload.on_error,
        submitted=payload.code,
    )
    return report_events(events, console)


def report_events(events: Iterable[Event], console: Console) -> int:
    """Print progress, at most one line per 15 seconds, and return the number of failed runs."""
    began, printed = time.monotonic(), float("-inf")
    done = failed = tokens = 0
    for event in events:
        match event:
            case Compiling(group, number, programs):
                console.print(f"compiling {group} ({number} of {programs})", highlight=False, soft_wrap=True)
            case Compiled(group, device, seconds):
                console.print(f"compiled {group} for {device} in {seconds:.1f} s", highlight=False, soft_wrap=True)
            case Message(text):
                console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)
            case Progressed(_, _, _, read):
                tokens += read
            case Finished(_, row):
                done += 1
                if row["status"] == "failed":
                    failed += 1
                    console.print(f"{row['trial']} failed: {row['cause']}", highlight=False, soft_wrap=True)
        if done and time.monotonic() - printed > SECONDS_BETWEEN_LINES:
            printed = time.monotonic()
            console.print(f"{count_of(done, 'run')}, {tokens / (printed - began):,.0f} tokens/s", highlight=False)
    console.print(f"{count_of(done, 'run')} trained, {failed} failed", highlight=False)
    return failed
