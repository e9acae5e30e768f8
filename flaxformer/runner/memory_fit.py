"""As many members at a time as the memory of a device group holds."""

import functools
import traceback
from collections.abc import Callable, Iterator, Sequence

import jax

from flaxformer.runner.execution import DeviceGroup, Execution
from flaxformer.runner.partial_runs import PartialRun
from flaxformer.runner.program import Program, Stopped
from flaxformer.store.store import Row
from flaxformer.study.declare import Trial
from flaxformer.study.plan import ProgramGroup


class MemoryFittedProgram:
    """A group's program on one device group, for as many members as fit by the compiler's analysis of its memory.

    If memory still runs out, in a compilation or in training, half as many are used from then on.

    Args:
      group: what is trained.
      device_group: where.
      execution: how.
      device_groups: how many share the group.
      tell: hears, in a sentence, of every time that fewer are tried.
    """

    def __init__(
        self,
        group: ProgramGroup,
        device_group: DeviceGroup,
        execution: Execution,
        device_groups: int,
        notify: Callable[[str], None],
    ) -> None:
        self.group, self.device_group, self.execution, self.notify = group, device_group, execution, notify
        self.compile_seconds = 0.0
        self.program: Program | None = None
        self._compile(execution.members(group.size, device_groups))

    def train(self, trials: Sequence[Trial], report: Callable[[int, int, int], None]) -> Iterator[tuple[Trial, Row]]:
        """Train trials, and give each its row, failed where an exception came.

        `report` hears how many members are further, by how many steps, and how many of those were taken here.

        Raises:
          Exception: a smaller program does not compile; the trials whose rows did not come have none.
        """
        left = list(trials)
        while left and self.program is not None:
            members, cause = self.program.members, ""
            batch, how = left[:members], self.execution
            kept = PartialRun(how.output, self.group, batch, members, how.save_minutes, self.notify)
            try:
                rows = self.program.train(batch, functools.partial(report, len(batch)), kept)
            except Stopped:
                raise
            except Exception as error:
                if members > 1 and is_out_of_memory(error):
                    cause = error_line(error)
                else:
                    rows = [failed(error) for _ in batch]
            if cause:  # out here, for the exception holds the arrays of the program that ran out of memory
                self.program = None
                self._compile(self._fewer(members // 2, cause))
                continue
            left = left[len(batch) :]
            yield from zip(batch, rows, strict=True)
            kept.remove()

    def _compile(self, members: int) -> None:
        """Compile for so many members, or for as many as fit."""
        while self.program is None:
            cause, fewer = "", members // 2
            try:
                self.program = Program(self.group, self.device_group, self.execution, members)
            except Exception as error:
                if members == 1 or not is_out_of_memory(error):
                    raise
                cause = error_line(error)
            if self.program is not None:
                self.compile_seconds += self.program.compile_seconds
                need, memory = self.program.bytes, self.device_group.memory
                if members > 1 and self.execution.group_size is None and need > memory:
                    fewer = min(fewer, max(1, int(memory / need * members)))
                    cause, self.program = f"{members} need {need / 1e9:,.1f} GB of {memory / 1e9:,.1f}", None
            if cause:
                members = self._fewer(fewer, cause)

    def _fewer(self, members: int, cause: str) -> int:
        """The next number of members to try, when it is told."""
        members = power_of_two(members)
        self.notify(
            f"{self.group.name}: {members} at a time on {self.device_group} from here on, for memory ran out: {cause}"
        )
        return members


def power_of_two(number: int) -> int:
    """The greatest that is not above it."""
    return 1 << (number.bit_length() - 1)


def is_out_of_memory(error: BaseException) -> bool:
    """True if a device, or the machine, had not as much memory as was asked for; a CPU calls it an internal error."""
    words = ("RESOURCE_EXHAUSTED", "Out of memory")
    of_device = isinstance(error, jax.errors.JaxRuntimeError) and any(word in str(error) for word in words)
    return of_device or isinstance(error, MemoryError)


def error_line(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def failed(error: BaseException) -> Row:
    """The row of a trial that an exception ended."""
    lines = "".join(traceback.format_exception(error))
    cause = (
        f"out of memory with one run at a time ({error_line(error)})" if is_out_of_memory(error) else error_line(error)
    )
    return {"status": "failed", "cause": cause, "error": lines}
