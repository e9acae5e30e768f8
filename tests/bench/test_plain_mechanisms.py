"""What `flaxformer bench catalog` compares: components of the catalog, and the same in plain JAX."""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer.components.component import with_aux

ROOT = Path(__file__).parents[2] / "experiments" / "benchmarks"
NAMES = (
    "LinearAttention", "Retention", "Mamba2", "GatedLinearAttention", "DeltaNet", "GatedDeltaRule", "Hyena",
    "LatentAttention", "DifferentialAttention", "MixtureOfExperts",
)  # fmt: skip


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("catalog"), importlib.import_module("plain_mechanisms")


def gradients(function, weights, x):
    def total(weights, x):
        y = function(weights, x)
        return (y**2).sum(), y

    return jax.jit(jax.grad(total, (0, 1), has_aux=True))(weights, x)


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("name", NAMES)
def test_the_plain_form_computes_the_component(benchmark, name):
    catalog, plain = benchmark
    assert {*plain.PLAIN} == {*NAMES}
    component, weights, x, context = catalog.problem(name, width=64, batch=2, length=128)
    functions = [lambda weights, x: with_aux(component.apply(weights, x, context))[0], plain.PLAIN[name]]
    if name == "MixtureOfExperts":
        functions.append(plain.ragged_experts)
    with jax.numpy_rank_promotion("allow"):
        expected, *others = (gradients(function, weights, x) for function in functions)
    for found in others:
        for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5 + 1e-4 * abs(two).max())  # some are 0
