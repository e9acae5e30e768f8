"""Measurement of a rate within a process: asynchronous work is waited for, and compilation is not counted."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from flaxformer.bench.declare import Work

WARM_UP, WINDOWS = 2, 3


def rate(
    work: Work,
    call: Callable[[], Any],
    *,
    units: float,
    name: str,
    ready: Callable[[Any], Any] = lambda result: result,
    seconds: float = 3.0,
) -> dict[str, Any]:
    """Units of work a second: the median of 3 windows of about `seconds` in all.

    The first call, with what it compiles, gives `first_step_seconds` since the process was started, and is not in the
    rate; nor are the two calls after it. Calls of one window follow each other without waiting, as a training loop's
    do, and the last is waited for.

    Args:
      work: as the way was given it.
      call: does the work once; how much is `units`.
      name: of the rate.
      ready: waits until what a call returned is there, such as `jax.block_until_ready` or a synchronisation.
      seconds: of all windows.
    """
    ready(call())
    first = work.since_start()
    for _ in range(WARM_UP):
        began = time.perf_counter()
        ready(call())
        one = time.perf_counter() - began
    calls, windows = max(1, round(seconds / WINDOWS / one)), []
    for _ in range(WINDOWS):
        began = time.perf_counter()
        for _ in range(calls):
            last = call()
        ready(last)
        windows.append(units * calls / (time.perf_counter() - began))
    return {name: statistics.median(windows), f"{name}_windows": windows, "calls": calls, "first_step_seconds": first}


def first_step(
    work: Work, call: Callable[[], Any], *, ready: Callable[[Any], Any] = lambda result: result
) -> dict[str, Any]:
    """Seconds from the start of the process, imports and compilation included, to the end of one call."""
    ready(call())
    return {"first_step_seconds": work.since_start()}
