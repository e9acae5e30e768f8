"""The process of one way: `python -m flaxformer.bench.child`, with one JSON word; writes what was measured to a file.

Peak memory is that of this process alone, or of its largest child. Linux's ru_maxrss begins with that of the process
that forked (it outlives `exec`), so the high-water mark of the process's own memory is read where there is one.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

from flaxformer.bench.declare import Work, read


def peak_memory_bytes() -> int:
    """The largest resident memory so far of this process, or of a child of it that has ended."""
    unit = 1 if sys.platform == "darwin" else 1024
    own, status = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, Path("/proc/self/status")
    if status.exists():
        marks = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        own = int(marks[0]) * 1024 if marks else own
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit)


def main(task: dict[str, Any]) -> None:
    """Measure one way at one point."""
    way = read(Path(task["file"])).way(task["way"])
    work = Work(task["point"], Path(task["scratch"]), task["began"])
    numbers = dict(way.measure(work))
    numbers = {"peak_memory_bytes": peak_memory_bytes()} | numbers
    Path(task["answer"]).write_text(json.dumps(numbers))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
