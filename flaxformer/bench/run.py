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
from collections.abc import Iterator, Sequence
from pathlib import Path

from flaxformer.bench.child import ProcessArguments
from flaxformer.bench.declare import Benchmark, Numbers, Way, WorkPoint
from flaxformer.bench.results import Measurement

ENVIRONMENT = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
"""Environment of each process: the first step includes compilation unless the way enables the cache itself."""
WORDS = 3000
"""Characters of the last output of a failed process that are kept."""


@dataclasses.dataclass(frozen=True)
class Measuring:
    """Event: a way is about to be measured; round 0 is a rehearsal."""

    round: int
    point: WorkPoint
    way: str


def measure(benchmark: Benchmark, file: Path, ways: Sequence[Way], rounds: int) -> Iterator[Measuring | Measurement]:
    """Measure each way once per round and point, one after another; yield events as they happen.

    If a way fails, its measurement has the error; the other ways go on, and it is tried again in the next round.
    Closing the iterator, or an exception in the caller, ends the running process.
    """
    with tempfile.TemporaryDirectory(prefix="flaxformer-bench-") as folder:
        for number in range(rounds + 1):
            for point in benchmark.points():
                for way in ways:
                    if not way.takes_part(point):
                        continue
                    scratch = Path(folder) / way.name
                    scratch.mkdir(exist_ok=True)
                    for _ in range(1 if number else way.rehearsals):
                        yield Measuring(number, point, way.name)
                        numbers, error = _in_a_process(file, way.name, point, scratch)
                        if number:
                            yield Measurement(number, point, way.name, numbers, error)


def _in_a_process(file: Path, way: str, point: WorkPoint, scratch: Path) -> tuple[Numbers | None, str | None]:
    """Return the numbers of a way that is measured in a fresh process, or None and the error."""
    answer = scratch / "answer.json"
    answer.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as said:
        task = ProcessArguments(
            file=str(file),
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
            code = process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and the processes that it started
            process.wait()
            raise
        if code == 0 and answer.exists():
            return json.loads(answer.read_text()), None
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
        return None, f"exit code {code}: {text[-WORDS:] or 'no output'}"
