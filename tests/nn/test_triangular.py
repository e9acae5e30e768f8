"""Triangular systems by products: values and gradients beside NumPy, and two solutions at the same time."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer
from flaxformer.nn.triangular import solve_unit_lower


@pytest.mark.every(5, "long")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 33])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_solutions_equal_those_of_numpy(size, batch):
    dice = np.random.default_rng(size)
    matrix, right = dice.normal(size=(*batch, size, size)) / 2, dice.normal(size=(*batch, size, 4))
    lower = np.tril(matrix, -1) + np.eye(size)
    with jax.enable_x64(True):
        solution = solve_unit_lower(jnp.asarray(matrix), jnp.asarray(right))
        np.testing.assert_allclose(solution, np.linalg.solve(lower, right), rtol=1e-9, atol=1e-9)

        def total(matrix, right):
            return jnp.sin(solve_unit_lower(matrix, right)).sum()

        found = jax.grad(total, (0, 1))(jnp.asarray(matrix), jnp.asarray(right))
        x = np.linalg.solve(lower, right)
        toward_right = np.linalg.solve(np.swapaxes(lower, -1, -2), np.cos(x))
        toward_matrix = np.tril(-toward_right @ np.swapaxes(x, -1, -2), -1)
        np.testing.assert_allclose(found[0], toward_matrix, rtol=1e-8, atol=1e-8 * abs(toward_matrix).max())
        np.testing.assert_allclose(found[1], toward_right, rtol=1e-8, atol=1e-8 * abs(toward_right).max())


def test_equal_keys_are_solved_to_rounding():
    """A system whose powers grow to thousands, while its inverse has the entries 1, −1 and 0."""
    right = np.random.default_rng(0).normal(size=(64, 3))
    solution = solve_unit_lower(jnp.ones((64, 64)), jnp.asarray(right, jnp.float32))
    np.testing.assert_allclose(solution, np.diff(right, axis=0, prepend=0), atol=1e-5)


def test_no_component_solves_triangular_systems_by_lapack():
    """MesaNet alone does: it solves one positive definite system, and another after it for the gradient."""
    package = Path(flaxformer.__file__).parent
    files = [path for folder in ("nn", "components", "catalog", "model") for path in (package / folder).rglob("*.py")]
    solvers = r"triangular_solve|solve_triangular|cho_solve|linalg\.(solve|inv)"
    assert [path.stem for path in files if re.search(solvers, path.read_text())] == ["mesa_net"]


LARGE_CHUNKS = """
import jax, jax.numpy as jnp
from flaxformer.nn.linear_recurrence import linear_recurrence, normalize_length

q, k, v = jax.random.normal(jax.random.key(0), (3, 8, 512, 4, 64))
strength = jax.nn.sigmoid(jax.random.normal(jax.random.key(1), (8, 512, 4, 1)))
state = jnp.zeros((8, 4, 64, 64))

def total(q, k, v, strength):
    update = (-k, strength * k)
    return (linear_recurrence(q, strength * k, v, None, state, update=update, chunk=64)[0] ** 2).sum()

jax.block_until_ready(jax.jit(jax.grad(total, (0, 1, 2, 3)))(q, normalize_length(k), v, strength))
"""


@pytest.mark.long
def test_large_chunks_end():
    """In a process of its own: LAPACK's solver, called twice at a time, waited without end on two cores."""
    assert subprocess.run([sys.executable, "-c", LARGE_CHUNKS], timeout=120).returncode == 0
