"""Process of one worker: train the trials of one job into the output folder.

    python -m flaxformer.launchers.worker DIR/launches/ID.json INDEX

It stops at its next chunk after Ctrl-C, SIGTERM or SIGUSR2. Finished runs are kept; the same command continues.
"""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from flaxformer.launchers.work import DONE, FAILED, INTERRUPTED, USER_ERROR, work
from flaxformer.system.errors import UserError
from flaxformer.system.interrupts import interrupt_on_signals, interrupted
from flaxformer.system.startup.compilation_cache import keep_compiled_programs
from flaxformer.system.startup.cpu_devices import one_cpu_device_per_core


def main() -> int:
    """Entry point; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flaxformer.launchers.worker", description=__doc__)
    parser.add_argument("payload", type=Path, help="a file of DIR/launches")
    parser.add_argument("index", type=int, help="number of the job, from 0")
    parser.add_argument("--cores", help="CPU cores to use, such as 0,1")
    words = parser.parse_args()
    if words.cores:
        os.sched_setaffinity(0, map(int, words.cores.split(",")))
    interrupt_on_signals()
    keep_compiled_programs()
    one_cpu_device_per_core()
    console = Console(width=200)
    try:
        return FAILED if work(words.payload, words.index, console) else DONE
    except UserError as error:
        console.print(f"error: {error}", style="red", soft_wrap=True)
        return USER_ERROR
    except KeyboardInterrupt:
        console.print("Stopped. Finished and saved runs are kept.")
        return INTERRUPTED
    except Exception:
        if not interrupted.is_set():
            raise
        return INTERRUPTED  # a library has turned the interruption into another exception


if __name__ == "__main__":
    sys.exit(main())
