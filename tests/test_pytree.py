"""Nodes: tree structures that include the class, leaf paths, and rebuilding."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import flaxformer
from flaxformer.config import Alibi, LeCun, NoPositions, Residual, ReZero, Xavier
from flaxformer.nn.masks import Explicit, Padding
from flaxformer.pytree import Node
from flaxformer.tasks import Copy, Reverse

MASK = Padding(jnp.ones((2, 3), bool))
SAME_FIELDS = [
    (Xavier(), LeCun()),
    (NoPositions(), Alibi()),
    (Residual(), ReZero()),
    (Copy(), Reverse()),
    (MASK, Explicit(MASK.valid)),
    (MASK & MASK, MASK | MASK),
]


@pytest.mark.parametrize(("one", "other"), SAME_FIELDS, ids=lambda node: type(node).__name__)
def test_classes_with_the_same_fields_have_different_structures(one, other):
    assert jax.tree.structure(one) != jax.tree.structure(other)
    assert jax.tree.structure(one) == jax.tree.structure(jax.tree.map(lambda x: x, one))


def test_leaf_paths_are_field_names_and_rebuilding_preserves_the_class():
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(MASK & MASK)]
    assert len(paths) == 2
    assert all(path.endswith(".valid") for path in paths)
    assert isinstance(jax.tree.map(jnp.logical_not, MASK), Padding)
    assert MASK.replace(valid=None).valid is None


def test_only_pytree_py_registers_pytrees():
    for path, name in itertools.product(Path(flaxformer.__file__).parent.rglob("*.py"), ["PyTreeNode", "register_"]):
        found = [line for line in path.read_text().splitlines() if name in line]
        assert not found or path.name == "pytree.py", (path, found)
    assert issubclass(Xavier, Node)
