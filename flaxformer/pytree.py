"""Dataclasses that JAX sees as trees."""

import dataclasses
from typing import Any, Self, dataclass_transform

import flax.struct
import jax


@dataclass_transform(frozen_default=True, field_specifiers=(flax.struct.field, dataclasses.field))
class Node:
    """Base of frozen dataclasses that are pytrees; a field of `flax.struct.field(pytree_node=False)` is structure.

    As `flax.struct.PyTreeNode`, but that a class is part of its structure too. Flax registers its dataclasses by
    `jax.tree_util.register_dataclass`, under which (jax 0.10.2) the structures of two classes whose fields agree, such
    as `Xavier` and `LeCun`, compare equal: a compiled function may then run the program of the one for the other.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=True, **options)(cls)
        leaves: list[str] = []
        rest: list[str] = []
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            (leaves if field.metadata.get("pytree_node", True) else rest).append(field.name)
        keys = [jax.tree_util.GetAttrKey(name) for name in leaves]

        def structure(node: Any) -> tuple[Any, ...]:
            return tuple(getattr(node, name) for name in rest)

        def flatten(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            return tuple(getattr(node, name) for name in leaves), structure(node)

        def flatten_with_keys(node: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            return [(key, getattr(node, name)) for key, name in zip(keys, leaves, strict=True)], structure(node)

        def unflatten(aside: tuple[Any, ...], children: Any) -> Any:
            return cls(**dict(zip(leaves, children, strict=True)), **dict(zip(rest, aside, strict=True)))

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def replace(self, **changes: Any) -> Self:
        """The same but for some fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]
