"""Device groups that compile the same functions trace them once, and the traces are freed with the last program."""

import gc
import weakref

import jax
import pytest
from study.tiny import BASELINE, tiny

from flaxformer.runner.events import Compiled, Finished
from flaxformer.runner.execute import execute
from flaxformer.runner.execution import Execution
from flaxformer.study.program_groups import groups
from flaxformer.training.run_functions import functions_of


@pytest.fixture
def measured():
    """A group of two runs, and a list that grows whenever its `measure` is traced."""
    traced = []

    def measure(params, run):
        traced.append(run)
        return {"noise": params.embedding.tokens.std()}

    [group] = groups(tiny(axes=(), claims=(), seeds=range(2)).trials(), measure)
    return group, traced


def finished(group, devices):
    """The devices that compiled, and the number of finished runs."""
    found = list(execute([group], Execution(devices=devices, group_size=1)))
    compiled = {event.device for event in found if isinstance(event, Compiled)}
    assert all(event.row.status == "done" for event in found if isinstance(event, Finished))
    return compiled, len([event for event in found if isinstance(event, Finished)])


@pytest.mark.long
def test_two_devices_trace_the_functions_of_a_group_once(measured):
    if jax.device_count() < 2:
        pytest.skip("needs two devices")
    group, traced = measured
    finished(group, 1)
    alone = len(traced)
    compiled, runs = finished(group, 2)
    assert (len(compiled), runs) == (2, 2)
    assert len(traced) == 2 * alone


@pytest.mark.slow
def test_functions_are_freed_with_the_last_program(measured):
    group, _ = measured
    functions = weakref.ref(functions_of(group.example, 1, "auto", group.measure))
    gc.collect()
    assert functions() is None
    shared = functions_of(group.example, 1, "auto", group.measure)
    functions = weakref.ref(shared)
    finished(group, 1)
    assert functions_of(group.example, 1, "auto", group.measure) is shared
    del shared
    gc.collect()
    assert functions() is None


def test_only_runs_of_one_structure_share_functions():
    one = functions_of(BASELINE, 1, "auto")
    assert functions_of(BASELINE.replace(seed=7), 1, "auto") is one
    assert functions_of(BASELINE, 2, "auto") is not one
    assert functions_of(BASELINE, None, "auto") is not one
    deeper = BASELINE.replace(model=BASELINE.model.replace(layers=BASELINE.model.layers + 1))
    assert functions_of(deeper, 1, "auto") is not one
