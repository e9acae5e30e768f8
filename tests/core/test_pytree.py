"""Nodes: tree structures that include the class, leaf paths, and rebuilding."""

import itertools
from pathlib import Path

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer
from flaxformer.components import Alibi, Attention, LeCun, NoPositions, Residual, ReZero, Xavier
from flaxformer.config import ModelConfig
from flaxformer.core.pytree import Node
from flaxformer.model import apply, init
from flaxformer.nn.masks import Explicit, Padding
from flaxformer.system.errors import UserError
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


@pytest.mark.parametrize("leaves", range(4))
@pytest.mark.parametrize("static", range(4))
def test_a_node_is_rebuilt_with_each_value_in_its_field(leaves, static):
    fields = {f"number_{i}": flax.struct.field() for i in range(leaves)}
    fields |= {f"choice_{i}": flax.struct.field(pytree_node=False) for i in range(static)}
    kind = type("Made", (Node,), {"__annotations__": dict.fromkeys(fields, object), **fields})
    node = kind(*range(leaves), *"abcd"[:static])
    flat, structure = jax.tree.flatten(node)
    assert flat == list(range(leaves))
    assert jax.tree.unflatten(structure, flat) == node
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(node)]
    assert paths == [f".number_{i}" for i in range(leaves)]


def test_only_pytree_py_registers_pytrees():
    names = ["PyTreeNode", "tree_util.register_", "register_dataclass"]
    for path, name in itertools.product(Path(flaxformer.__file__).parent.rglob("*.py"), names):
        found = [line for line in path.read_text().splitlines() if name in line]
        assert not found or path.name == "pytree.py", (path, found)
    assert issubclass(Xavier, Node)


def test_functions_of_weights_and_configs_can_be_exported():
    pytest.importorskip("flatbuffers")
    config = ModelConfig(vocabulary=7, layers=1, d_model=8, attention=Attention(heads=2))
    arguments = (init(jax.random.key(0), config), jax.tree.map(jnp.asarray, config), jnp.arange(5)[None])
    function = jax.jit(lambda params, config, tokens: apply(params, config, tokens))
    again = jax.export.deserialize(jax.export.export(function)(*arguments).serialize())
    np.testing.assert_array_equal(again.call(*arguments), function(*arguments))


def test_a_class_that_is_defined_again_is_exported_under_another_name():
    made = [type("Twice", (Node,), {"__annotations__": {"x": int}, "__module__": __name__}) for _ in range(2)]
    assert jax.tree.structure(made[0](1)) != jax.tree.structure(made[1](1))


@pytest.mark.parametrize("wrong", [(16, None), [16], {"a": 1}, {16}, b"16", "16"])
def test_a_leaf_takes_no_other_plain_data(wrong):
    with pytest.raises(UserError, match=r"Attention.window is"):
        Attention(window=wrong)
