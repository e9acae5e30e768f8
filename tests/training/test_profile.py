"""Profiled steps: every step is taken once, evaluations keep their places, the trace has those of the request."""

import itertools
from pathlib import Path

import jax
import pytest

from flaxformer.system.errors import UserError
from flaxformer.system.settings import ProfiledSteps
from flaxformer.training import profile
from flaxformer.training.profile import Trace, profiled_chunks


class Counter:
    """Compiled functions whose state is the number of steps taken; `calls` has the length of each call."""

    def __init__(self):
        self.calls = []

    def compile_advance(self, state, run, steps):
        assert state == 0 or self.calls == []

    def chunks(self, run, first, last, steps):
        return [("data", min(steps, last - at)) for at in range(first, last, steps)]

    def advance(self, state, run, steps, source):
        self.calls.append((state, steps))
        return state + steps, {"loss": list(range(state, state + steps))}


class Tracer:
    """Traces that are noted by the steps at which they begin and end, in place of jax.profiler."""

    def __init__(self, folder):
        self.folder, self.error = folder, ""
        Tracer.steps.append(Tracer.counter.calls[-1] if Tracer.counter.calls else (0, 0))

    def stop(self):
        (self.folder / "plugins/profile/now").mkdir(parents=True)
        Tracer.steps.append(Tracer.counter.calls[-1])


GRID = itertools.product((1, 3, 7), (None, 1, 6, 11, 40), (0, 4, 12), (12, 24), (6, 12))


@pytest.mark.parametrize(("count", "begin", "first", "last", "size"), list(GRID))
def test_every_step_is_taken_once_and_the_profiled_ones_are_traced(
    tmp_path, monkeypatch, count, begin, first, last, size
):
    Tracer.steps, Tracer.counter = [], (counter := Counter())
    monkeypatch.setattr(profile, "StepTracer", Tracer)
    arguments = (counter, None, first, first, last, size)
    items = list(profiled_chunks(ProfiledSteps(count, begin), tmp_path, *arguments))
    chunks = [item for item in items if not isinstance(item, Trace)]
    assert [loss for chunk in chunks for loss in chunk.curves["loss"]] == list(range(first, last))
    ends = {chunk.step for chunk in chunks}
    assert {step for step in range(first + 1, last + 1) if step % size == 0} <= ends  # evaluations are due there
    untraced = [chunk.step for chunk in profiled_chunks(ProfiledSteps(count, begin), None, Counter(), *arguments[1:])]
    assert untraced == [chunk.step for chunk in chunks]  # another process calls the same programs
    if first == last:
        assert items == []
        return
    (trace,) = [item for item in items if isinstance(item, Trace)]
    (before, length), (after, steps) = Tracer.steps
    assert (trace.first, trace.last) == ((before + length or first) + 1, after + steps)
    assert trace.steps >= min(count, last - first)
    assert trace.steps < count + 2 * trace.chunk
    assert trace.steps % trace.chunk == 0 or first % trace.chunk
    if first % size == 0 and last - first >= 2 * size and trace.last < last:
        assert (before, length) != (0, 0)
        assert length == trace.chunk  # the program is called before the trace begins
    if begin is not None and begin > first + size and begin + count <= last:
        assert trace.first <= begin
        assert trace.last >= begin + count - 1


def test_the_trace_of_the_last_steps_is_taken_where_the_first_is_beyond_them(tmp_path, monkeypatch):
    Tracer.steps, Tracer.counter = [], (counter := Counter())
    monkeypatch.setattr(profile, "StepTracer", Tracer)
    *_, trace = profiled_chunks(ProfiledSteps(3, 100), tmp_path, counter, None, 0, 0, 24, 6)
    assert (trace.first, trace.last) == (22, 24)


@pytest.mark.parametrize("text", ["", "0", "x", "3:", ":3", "0:3", "3:0", "1:2:3", "-1", "1.5", "9" * 10, "٣"])
def test_steps_that_are_none_are_refused(text):
    with pytest.raises(UserError, match=f"profile is '{text}'; expected a number of steps, or FIRST:COUNT"):
        ProfiledSteps.parse(text)
    assert ProfiledSteps.parse("10") == ProfiledSteps(10)
    assert ProfiledSteps.parse("101:10") == ProfiledSteps(10, 101)


@pytest.mark.parametrize("step", ["start_trace", "stop_trace"])
def test_a_trace_that_fails_harms_nothing(tmp_path, monkeypatch, step):
    def fails(*arguments, **options):
        raise RuntimeError("no space\nleft")

    monkeypatch.setattr(jax.profiler, "start_trace", lambda *arguments, **options: None)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: None)
    monkeypatch.setattr(jax.profiler, step, fails)
    *chunks, trace = profiled_chunks(ProfiledSteps(2, 3), tmp_path / "profile", Counter(), None, 0, 0, 4, 2)
    assert chunks[-1].step == 4
    assert trace.error == "RuntimeError: no space left"
    assert trace.folder == Path(tmp_path / "profile")
