"""Texts of compiled programs: those of each version of JAX, and of the installed one, give the same figures."""

import pytest
from targets.golden.make_texts import HERE, text_of

from flaxformer.targets.collectives import Collective, collectives_of
from flaxformer.targets.texts import computations, host_transfers, run_counts
from flaxformer.targets.traffic import kernels_of

VERSIONS = sorted(path.name for path in HERE.glob("jax-*"))


@pytest.fixture(params=[*VERSIONS, "installed"])
def read(request):
    """Return a function that returns the text of a program."""
    if request.param == "installed":
        return text_of
    return lambda name: (HERE / request.param / f"{name}.txt").read_text()


def test_collectives_are_those_of_the_equation(read):
    assert collectives_of(read("looped"), 2) == [Collective("all-reduce", "f32", (5, 5), 2, 3)]


def test_loops_run_as_often_as_they_say(read):
    counts = run_counts(computations(read("looped"))).values()
    assert all(is_known for _, is_known in counts)
    assert {count for count, _ in counts} <= {1, 3, 4}  # the condition is read once more
    assert 3 in {count for count, _ in counts}


def test_products_read_and_write_their_arrays(read):
    products = [kernel for kernel in kernels_of(read("looped")) if kernel.scope.endswith("dot_general")]
    moved = sorted((kernel.read, kernel.written, kernel.runs) for kernel in products if "dot" in kernel.name)
    x, w = 4 * 7 * 5, 4 * 5 * 5
    assert moved == [(x + w, x, 3), (2 * x, w, 3)]


def test_callbacks_are_found(read):
    assert list(host_transfers(read("printing"))) == ["Python callback"]
    assert host_transfers(read("looped")) == {}
