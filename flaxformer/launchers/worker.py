"""One worker: train the cells of one job into the study's folder.

    python -m flaxformer.launchers.worker DIR/launches/ID.json INDEX

Signals that ask to stop (Ctrl-C, SIGTERM, SIGUSR2) end it at its next chunk; finished runs are kept, and the same
command again goes on.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from rich.console import Console

from flaxformer.launchers.payload import read
from flaxformer.struct import UserError
from flaxformer.study.execute import Advanced, Compiled, Event, Finished, Told
from flaxformer.study.execution import one_cpu_device_per_core
from flaxformer.study.launch import run

DONE, FAILED, USER_ERROR, INTERRUPTED = 0, 1, 2, 130
SECONDS_BETWEEN_LINES = 15


def work(path: Path, index: int, console: Console) -> int:
    """Train the cells of a job that have no row yet; returns the number of runs that failed.

    Raises:
      UserError: the payload, the study's file or its folder are not as they have to be.
    """
    payload = read(path)
    cells, study = payload.job(index), payload.study()
    events = run(
        study,
        payload.execution,
        only=cells,
        retry_failed=payload.retry_failed,
        on_error=payload.on_error,
        file=payload.file,
        submitted=payload.code,
    )
    return tell(events, console)


def tell(events: Iterable[Event], console: Console) -> int:
    """Say what happens, a line now and then; returns the number of runs that failed."""
    began, told = time.monotonic(), float("-inf")
    done = failed = tokens = 0
    for event in events:
        match event:
            case Compiled(group, device, seconds):
                console.print(f"compiled {group} for {device} in {seconds:.1f} s", highlight=False, soft_wrap=True)
                continue
            case Told(text):
                console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)
            case Advanced(_, _, _, read):
                tokens += read
            case Finished(_, row):
                done += 1
                if row["status"] == "failed":
                    failed += 1
                    console.print(f"{row['cell']} failed: {row['cause']}", highlight=False, soft_wrap=True)
        if done and time.monotonic() - told > SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            console.print(f"{done} runs, {tokens / (told - began):,.0f} tokens/s", highlight=False)
    console.print(f"{done} runs trained, {failed} failed", highlight=False)
    return failed


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal that asks to stop as Ctrl-C: the run's workers end at their next chunk."""
    raise KeyboardInterrupt


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flaxformer.launchers.worker", description=__doc__)
    parser.add_argument("payload", type=Path, help="a file of DIR/launches")
    parser.add_argument("index", type=int, help="which of its jobs, from 0")
    parser.add_argument("--cores", help="the processor's cores to use, such as 0,1")
    words = parser.parse_args()
    if words.cores:
        os.sched_setaffinity(0, map(int, words.cores.split(",")))
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, interrupt)
    one_cpu_device_per_core()
    console = Console(width=200)
    try:
        return FAILED if work(words.payload, words.index, console) else DONE
    except UserError as error:
        console.print(f"error: {error}", style="red", soft_wrap=True)
        return USER_ERROR
    except KeyboardInterrupt:
        console.print("Stopped. Finished runs are kept.")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
