"""Measuring: every way in a process of its own, the ways in turn, round by round."""

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
from typing import Any

from flaxformer.bench.declare import Benchmark, Way, WorkPoint
from flaxformer.bench.results import Measurement

ENVIRONMENT = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
"""Of every way's process: a first step includes compilation, unless the way itself turns the cache on."""
WORDS = 3000
"""Characters of a failed process's last output that are kept."""


@dataclasses.dataclass(frozen=True)
class Measuring:
    """A way is about to be measured; round 0 is a rehearsal."""

    round: int
    point: WorkPoint
    way: str


def measure(benchmark: Benchmark, file: Path, ways: Sequence[Way], rounds: int) -> Iterator[Measuring | Measurement]:
    """Every way once a round at every point, one after another; yields what happens, as it happens.

    A way that fails says so in its measurement, is tried again in the next round, and the others go on. Closing the
    iterator (or an exception in the caller) ends the process that is running.
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


def _in_a_process(file: Path, way: str, point: WorkPoint, scratch: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The numbers of a way that is measured in a fresh process; or None, and why."""
    answer = scratch / "answer.json"
    answer.unlink(missing_ok=True)
    task = {"file": str(file), "way": way, "point": dict(point), "scratch": str(scratch), "answer": str(answer)}
    with tempfile.TemporaryFile() as said:
        task["began"] = time.monotonic()  # type: ignore[assignment]
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
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started itself
            process.wait()
            raise
        if code == 0 and answer.exists():
            return json.loads(answer.read_text()), None
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
        return None, f"exit code {code}: {text[-WORDS:] or 'it said nothing'}"
