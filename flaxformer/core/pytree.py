"""Base of the package's pytree dataclasses."""

import dataclasses
import json
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self, dataclass_transform

import flax.struct
import jax
import jax.export
from jax.tree_util import GetAttrKey

_DEFINED: Counter[str] = Counter()
"""Number of definitions of each name, since a file that is loaded again defines its classes again."""


def _register_for_export(cls: type) -> None:
    """Let `jax.export` serialize functions of a class: its static fields are stored as JSON, in order.

    A class that is defined again gets another name in files, so that a file keeps its meaning.
    """
    name = f"{cls.__module__}.{cls.__qualname__}"
    _DEFINED[name] += 1
    jax.export.register_pytree_node_serialization(
        cls,
        serialized_name=name if _DEFINED[name] == 1 else f"{name}#{_DEFINED[name]}",
        serialize_auxdata=lambda values: json.dumps(values).encode(),
        deserialize_auxdata=lambda data: _tuples(json.loads(bytes(data))),
    )


def _tuples(value: Any) -> Any:
    """Return plain data with tuples in place of lists, as static fields have them."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _values_of(names: list[str]) -> Callable[[object], tuple[object, ...]]:
    """Return a function that reads these attributes of an object; it runs at each call of a compiled function."""
    if not names:
        return lambda _: ()
    if len(names) == 1:
        (name,) = names
        return lambda node: (getattr(node, name),)
    return operator.attrgetter(*names)


@dataclass_transform(frozen_default=True, field_specifiers=(flax.struct.field, dataclasses.field))
class Node:
    """Base of frozen dataclasses that are pytrees; `flax.struct.field(pytree_node=False)` declares a static field.

    The difference to `flax.struct.PyTreeNode` is that the class belongs to the tree structure. Flax registers its
    dataclasses with `jax.tree_util.register_dataclass`; there (jax 0.10.2), two classes with the same fields, such as
    `Xavier` and `LeCun`, have equal structures, and a function compiled for one may run for the other.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]

    def __init_subclass__(cls, kw_only: bool = False) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)
        leaves: list[str] = []
        static: list[str] = []
        for field in dataclasses.fields(cls):
            (leaves if field.metadata.get("pytree_node", True) else static).append(field.name)
        names = (*leaves, *static)
        keys = [GetAttrKey(name) for name in leaves]
        leaf_values, static_values = _values_of(leaves), _values_of(static)

        def flatten(node: Node) -> tuple[tuple[object, ...], tuple[object, ...]]:
            return leaf_values(node), static_values(node)

        def flatten_with_keys(node: Node) -> tuple[list[tuple[GetAttrKey, object]], tuple[object, ...]]:
            return list(zip(keys, leaf_values(node), strict=True)), static_values(node)

        is_checked = hasattr(cls, "__post_init__")

        def unflatten(values: tuple[object, ...], children: Iterable[object]) -> Node:
            if is_checked:
                return cls(**dict(zip(names, (*children, *values), strict=True)))
            node = object.__new__(cls)
            node.__dict__.update(zip(names, (*children, *values), strict=True))  # much faster than __init__
            return node

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        _register_for_export(cls)

    def replace(self, **changes: object) -> Self:
        """Return a copy with the given fields replaced."""
        return dataclasses.replace(self, **changes)


def holds_array(value: object) -> bool:
    """True for an array or a tracer, and for a tuple with one."""
    return any(map(holds_array, value)) if isinstance(value, tuple) else hasattr(value, "dtype")
