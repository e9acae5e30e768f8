"""Process that measures one way: `python -m flaxformer.bench.child JSON`; it writes the numbers to a file.

Peak memory is that of this process or of its largest child. On Linux, ru_maxrss starts at the value of the parent
process (it survives `exec`), so the high-water mark in /proc/self/status is read where it exists.
"""

import json
import resource
import sys
from pathlib import Path
from typing import TypedDict

from flaxformer.bench.declare import Unavailable, Work, WorkPoint
from flaxformer.bench.read import read
from flaxformer.bench.suite import Suite

UNAVAILABLE = "unavailable"
"""Key of the answer, in place of numbers, why this machine cannot measure the way."""


class ProcessArguments(TypedDict):
    """Arguments of the process, as JSON: a way of a file, where to measure it, and the file for its numbers.

    The section is "" for a file with one benchmark.
    """

    file: str
    section: str
    way: str
    point: WorkPoint
    scratch: str
    answer: str
    began: float


def peak_memory_bytes() -> int:
    """Largest resident memory so far of this process or of a child process that has ended."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak, status = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, Path("/proc/self/status")
    if status.exists():
        marks = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        peak = int(marks[0]) * 1024 if marks else peak
    return max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit)


def main(task: ProcessArguments) -> None:
    """Measure one way at one point."""
    declared = read(Path(task["file"]))
    benchmark = declared.sections[task["section"]].benchmark if isinstance(declared, Suite) else declared
    work = Work(task["point"], Path(task["scratch"]), task["began"])
    way = benchmark.way(task["way"])
    if way.role == "ours":  # a peer's process loads nothing that the peer does not
        from flaxformer.system.startup import preload_nvrtc

        preload_nvrtc()
    try:
        numbers = dict(way.measure(work))
    except Unavailable as reason:
        Path(task["answer"]).write_text(json.dumps({UNAVAILABLE: str(reason)}))
        return
    numbers = {"peak_memory_bytes": peak_memory_bytes()} | numbers
    Path(task["answer"]).write_text(json.dumps(numbers))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
