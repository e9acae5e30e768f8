"""The catalog as a whole: every file has one form, and every mechanism trains and obeys the laws."""

import ast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import ARMS, NAMES, TASKS, model_of, run_of

from flaxformer.catalog import mechanisms, variants
from flaxformer.catalog.index import FAMILIES
from flaxformer.laws import check
from flaxformer.model import apply, extend, new_cache
from flaxformer.training import start, train_step

MODULES = {
    "flaxformer",
    "flaxformer.catalog",
    "flaxformer.nn",
    "jax",
    "jax.numpy",
    "jaxtyping",
    "optax",
    "typing",
    "collections.abc",
    "math",
    "functools",
    "itertools",
    "random",
}
"""Modules that a file of the catalog may import; of `flaxformer.nn` and `jax`, their modules too."""
MOST_LINES = 100
MOST_LINES_OF_TASKS = 115
"""Of a file whose generator draws a grammar or a graph."""
LAWS = ("causality", "padding", "decoding", "layout")
T = 9
TOKENS = np.random.default_rng(1).integers(0, 12, (2, T))


def lines_of_code(tree):
    """Number of lines with code: without docstrings, comments and blank lines."""
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    lines = {line for node in ast.walk(tree) if hasattr(node, "lineno") for line in (node.lineno, node.end_lineno)}
    return len(lines - docstrings)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_uses_the_public_interface_alone(name):
    mechanism = mechanisms()[name]
    tree = ast.parse(mechanism.path.read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in imported - MODULES if not name.startswith(("flaxformer.nn.", "jax."))} == set()
    private = [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr.startswith("_")]
    assert private == []
    assert lines_of_code(tree) <= (MOST_LINES_OF_TASKS if mechanism.family == "tasks" else MOST_LINES)
    assert mechanism.family in FAMILIES
    assert 1940 < mechanism.year < 2027
    assert variants(name)


def test_no_two_files_define_a_class_of_one_name():
    names = [kind for mechanism in mechanisms().values() for kind in mechanism.classes]
    assert len(names) == len(set(names))


@pytest.mark.every(5, "long")
@pytest.mark.every(5)
@pytest.mark.parametrize("arm", [*ARMS, *TASKS])
def test_every_arm_has_a_training_step(arm):
    run = run_of(arm)
    runs = jax.tree.map(lambda *leaves: jnp.stack(leaves), run, run.replace(seed=1))
    batch = run.task.load().batch(jax.random.key(0), 0)

    def step(runs, batch):
        return jax.vmap(lambda run: train_step(start(run, "scanned"), run, batch)[0])(runs)

    begun = jax.eval_shape(jax.vmap(lambda run: start(run, "scanned")), runs)
    after = jax.eval_shape(step, runs, batch)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), begun)


@pytest.mark.every(5, "long")
@pytest.mark.every(5)
@pytest.mark.parametrize("arm", ARMS)
def test_cached_decoding_is_the_full_pass(arm):
    config, params = model_of(arm)
    if config.vocabulary is None or config.mask_pattern != "causal":
        pytest.skip("not decoded token by token")
    branches = [branch for block in config.block_configs for _, branch in block.branches()]
    if any("decoding" in branch.exempt_from for branch in branches):
        pytest.skip("decoded differently by design")
    expected = jax.jit(apply)(params, config, TOKENS)
    cache, found = new_cache(params, config, (len(TOKENS),), T), []
    step = jax.jit(extend)
    for part in (TOKENS[:, :4], *np.split(TOKENS[:, 4:], T - 4, axis=1)):
        outputs, cache = step(params, config, part, cache)
        found.append(outputs)
    np.testing.assert_allclose(jnp.concatenate(found, 1), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_obeys_the_laws(arm):
    assert {one.law: str(one.finding) for one in check(run_of(arm), LAWS) if one.finding.is_violated} == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_obeys_all_laws(arm):
    assert {one.law: str(one.finding) for one in check(run_of(arm)) if one.finding.is_violated} == {}
