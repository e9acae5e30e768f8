"""Measurement of a rate within a process, without compilation and with asynchronous work completed."""

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

from flaxformer.bench.declare import Work

Called = TypeVar("Called")

WARM_UP, WINDOWS = 2, 3


def rate(
    work: Work,
    call: Callable[[], Called],
    *,
    units: float,
    name: str,
    ready: Callable[[Called], object] = lambda result: result,
    seconds: float = 3.0,
) -> dict[str, float | list[float]]:
    """Return units of work per second: the median of 3 windows that take about `seconds` together.

    The first call, which compiles, gives `first_step_seconds` (since the start of the process) and does not count
    towards the rate; nor do the next two calls, which warm up. Within a window, calls are dispatched without waiting,
    as in a training loop, and the window ends when the last result is ready.

    Args:
      work: argument of the way.
      call: function that does `units` of work.
      units: amount of work per call.
      name: name of the rate in the result.
      ready: function that waits for the result of a call, such as `jax.block_until_ready`.
      seconds: duration of all windows together.

    Raises:
      ValueError: the name is that of another number of the result.
    """
    if name in ("calls", "first_step_seconds"):
        raise ValueError(f"name is '{name}', which the result has already; expected another one")
    ready(call())
    first = work.since_start()
    for _ in range(WARM_UP):
        began = time.perf_counter()
        ready(call())
        call_seconds = time.perf_counter() - began
    calls, windows = max(1, round(seconds / WINDOWS / call_seconds)), []
    for _ in range(WINDOWS):
        began = time.perf_counter()
        for _ in range(calls):
            last = call()
        ready(last)
        windows.append(units * calls / (time.perf_counter() - began))
    return {name: statistics.median(windows), f"{name}_windows": windows, "calls": calls, "first_step_seconds": first}


def first_step(
    work: Work, call: Callable[[], Called], *, ready: Callable[[Called], object] = lambda result: result
) -> dict[str, float | list[float]]:
    """Return the seconds from the start of the process to the end of one call, with imports and compilation."""
    ready(call())
    return {"first_step_seconds": work.since_start()}
