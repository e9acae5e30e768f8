"""Work of a worker: the trials of one job, into the study's folder."""

import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from flaxformer.launchers.payload import read
from flaxformer.runner.execute import Compiled, Finished, Message, Progressed, StudyEvent
from flaxformer.runner.launch import run

DONE, FAILED, USER_ERROR, INTERRUPTED = 0, 1, 2, 130
"""Exit codes of a worker's process."""
SECONDS_BETWEEN_LINES = 15


def work(path: Path, index: int, console: Console) -> int:
    """Train the trials of a job that have no row yet; returns the number of runs that failed.

    Raises:
      UserError: the payload, the study's file or its folder are not as they have to be.
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


def report_events(events: Iterable[StudyEvent], console: Console) -> int:
    """Say what happens, a line now and then; returns the number of runs that failed."""
    began, printed = time.monotonic(), float("-inf")
    done = failed = tokens = 0
    for event in events:
        match event:
            case Compiled(group, device, seconds):
                console.print(f"compiled {group} for {device} in {seconds:.1f} s", highlight=False, soft_wrap=True)
                continue
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
            console.print(f"{done} runs, {tokens / (printed - began):,.0f} tokens/s", highlight=False)
    console.print(f"{done} runs trained, {failed} failed", highlight=False)
    return failed
