"""Slots that compile the same functions trace them once, and what JAX keeps of them goes with the last program."""

import gc

import jax
import pytest
from study.tiny import BASELINE, tiny

from flaxformer.runner import functions
from flaxformer.runner.execute import Compiled, Execution, Finished, execute
from flaxformer.study.plan import groups


@pytest.fixture
def measured():
    """A group of two runs, and a list that grows whenever what it measures is traced."""
    traced = []

    def measure(params, run):
        traced.append(run)
        return {"noise": params.embedding.tokens.std()}

    [group] = groups(tiny(axes=(), claims=(), seeds=range(2)).trials(), measure)
    return group, traced


def finished(group, devices):
    """The slots that compiled, and those that finished a run."""
    found = list(execute([group], Execution(devices=devices, group_size=1)))
    compiled = {event.device for event in found if isinstance(event, Compiled)}
    assert all(event.row["status"] == "done" for event in found if isinstance(event, Finished))
    return compiled, len([event for event in found if isinstance(event, Finished)])


def test_slots_trace_once_and_nothing_is_left_of_it(measured):
    if jax.device_count() < 2:
        pytest.skip("two devices are wanted")
    group, traced = measured
    others = set(functions._SHARED.keys())
    finished(group, 1)
    alone = len(traced)
    compiled, runs = finished(group, 2)
    assert (len(compiled), runs) == (2, 2)
    assert len(traced) == 2 * alone
    gc.collect()
    assert set(functions._SHARED.keys()) <= others


def test_runs_of_one_structure_share_and_others_do_not():
    how = (1, "auto", 5, None)
    one = functions.functions_of(BASELINE, *how)
    assert functions.functions_of(BASELINE.replace(seed=7), *how) is one
    assert functions.functions_of(BASELINE, 2, *how[1:]) is not one
    deeper = BASELINE.replace(model=BASELINE.model.replace(layers=BASELINE.model.layers + 1))
    assert functions.functions_of(deeper, *how) is not one
