"""Measurement: each way in a process of its own, the ways in turn, round by round."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flaxformer.bench.child import UNAVAILABLE, ProcessArguments
from flaxformer.bench.declare import Benchmark, Numbers, Way, WorkPoint
from flaxformer.bench.results import Measurement
from flaxformer.system.json_reader import parse_json

ENVIRONMENT = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
"""Environment of each process: the first step includes compilation unless the way enables the cache itself."""
LEAST_SECONDS = 2.0
"""Time below which no process is started."""
WORDS = 3000
"""Characters of the last output of a failed process that are kept."""


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Event: a way is about to be measured; round 0 is a rehearsal."""

    round: int
    point: WorkPoint
    way: str


def measure(
    benchmark: Benchmark,
    file: Path,
    ways: Sequence[Way],
    rounds: int,
    section: str = "",
    seconds: Callable[[int], float] | None = None,
) -> Iterator[Measuring | Measurement]:
    """Measure each way once per round and point, one after another; yield events as they happen.

    If a way fails, its measurement has the error; the other ways go on, and it is tried again in the next round.
    Closing the iterator, or an exception in the caller, ends the running process.

    Args:
      section: name of the benchmark in a suite.
      seconds: function from the number of processes that are left to the time of the next one; None for no limit.
    """
    processes = [
        (number, point, way)
        for number in range(rounds + 1)
        for point in benchmark.points()
        for way in ways
        if way.takes_part(point)
        for _ in range(1 if number else way.rehearsals)
    ]
    with tempfile.TemporaryDirectory(prefix="flaxformer-bench-") as folder:
        for done, (number, point, way) in enumerate(processes):
            limit = None if seconds is None else seconds(len(processes) - done)
            if limit is not None and limit < LEAST_SECONDS:
                if number:
                    yield Measurement(number, point, way.name, None, skipped="no time was left")
                continue
            scratch = Path(folder) / way.name
            scratch.mkdir(exist_ok=True)
            yield Measuring(number, point, way.name)
            outcome = _in_a_process(file, section, way.name, point, scratch, limit)
            if number:
                yield Measurement(number, point, way.name, *outcome)


def _in_a_process(
    file: Path, section: str, way: str, point: WorkPoint, scratch: Path, limit: float | None
) -> tuple[Numbers | None, str | None, str | None]:
    """Return the numbers of a way that is measured in a fresh process, or None, and the error or why it was skipped."""
    answer = scratch / "answer.json"
    answer.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as said:
        task = ProcessArguments(
            file=str(file),
            section=section,
            way=way,
            point=dict(point),
            scratch=str(scratch),
            answer=str(answer),
            began=time.monotonic(),
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "flaxformer.bench.child", json.dumps(task)],
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            return None, f"stopped after {limit:.0f} s, its part of the time", None
        except BaseException:
            _kill(process)
            raise
        if code == 0 and answer.exists():
            numbers = parse_json(answer.read_text())
            return (None, None, numbers[UNAVAILABLE]) if UNAVAILABLE in numbers else (numbers, None, None)
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
        return None, f"exit code {code}: {text[-WORDS:] or 'no output'}", None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
