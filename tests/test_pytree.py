"""What JAX takes for the same structure decides which compiled program runs: two classes are never the same."""

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

SEEN = Padding(jnp.ones((2, 3), bool))
ALIKE = [
    (Xavier(), LeCun()),
    (NoPositions(), Alibi()),
    (Residual(), ReZero()),
    (Copy(), Reverse()),
    (SEEN, Explicit(SEEN.valid)),
    (SEEN & SEEN, SEEN | SEEN),
]


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=lambda node: type(node).__name__)
def test_classes_with_the_same_fields_have_different_structures(one, other):
    assert jax.tree.structure(one) != jax.tree.structure(other)
    assert jax.tree.structure(one) == jax.tree.structure(jax.tree.map(lambda x: x, one))


def test_a_node_is_rebuilt_as_it_was_and_its_paths_are_its_fields():
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(SEEN & SEEN)]
    assert len(paths) == 2
    assert all(path.endswith(".valid") for path in paths)
    assert isinstance(jax.tree.map(jnp.logical_not, SEEN), Padding)
    assert SEEN.replace(valid=None).valid is None


def test_no_class_of_the_package_is_a_pytree_by_another_way():
    for path, name in itertools.product(Path(flaxformer.__file__).parent.rglob("*.py"), ["PyTreeNode", "register_"]):
        found = [line for line in path.read_text().splitlines() if name in line]
        assert not found or path.name == "pytree.py", (path, found)
    assert issubclass(Xavier, Node)
