"""Weights in Flax NNX variables: which kind holds which, and the base of the modules that hold a tree of them."""

import dataclasses
from typing import Any, TypeVar

import jax
from flax import nnx
from jaxtyping import Array

from flaxformer.config import ModelConfig
from flaxformer.interop import modules
from flaxformer.params import Parameters

Randomness = nnx.Rngs | nnx.RngStream | Array
ParametersT = TypeVar("ParametersT", bound=Parameters)


class Frozen(nnx.Variable):
    """A weight that stays as it was drawn or loaded."""


KINDS: dict[str, type[nnx.Variable]] = {"params": nnx.Param, "batch_stats": nnx.BatchStat, "frozen": Frozen}
"""The kind of variable that holds the weights of each collection."""


def to_variables(params: ParametersT, config: ModelConfig) -> ParametersT:
    """The same tree with each weight in a variable of its kind."""
    return in_variables(modules.collections(params, config), params)


def in_variables(names: Any, params: Any) -> Any:
    """A tree of weights, with each in a variable of the kind of its collection."""
    return jax.tree.map(lambda name, weight: KINDS[name](weight), names, params)


def _values(tree: Any) -> Any:
    return jax.tree.map(lambda variable: variable[...], tree, is_leaf=is_variable)


def is_variable(node: Any) -> bool:
    """True if a node is a variable, which JAX would take for a tree."""
    return isinstance(node, nnx.Variable)


class Holder(nnx.Module):
    """A module whose attributes are the fields of a tree of weights."""

    config: Any
    deterministic: bool | None

    def _hold(self, held: Parameters, config: ModelConfig) -> None:
        """Hold a tree of variables."""
        self.config = nnx.static(config)
        self.parameters_class = type(held)
        for field in dataclasses.fields(held):
            setattr(self, field.name, nnx.data(getattr(held, field.name)))

    @property
    def _held(self) -> Any:
        names = [field.name for field in dataclasses.fields(self.parameters_class)]
        return self.parameters_class(**{name: getattr(self, name) for name in names})

    @property
    def params(self) -> Any:
        """The weights as the pure tree that `flaxformer.model.apply` takes."""
        return _values(self._held)

    def _keep(self, rngs: nnx.Rngs | None, wanted: bool) -> None:
        self.rngs = nnx.data(rngs.dropout.fork() if rngs is not None and wanted else None)

    def _is_deterministic(self, deterministic: bool | None) -> bool:
        return nnx.module.first_from(
            deterministic,
            self.deterministic,
            error_msg=f"deterministic is None; {type(self).__name__} expects True or False, here or when it is built",
        )

    def _key(self, rngs: Randomness | None) -> Array:
        found = nnx.module.first_from(
            rngs, self.rngs, error_msg="deterministic is False and rngs is None; expected rngs to draw dropout from"
        )
        if isinstance(found, nnx.Rngs):
            return found.dropout()
        return found() if isinstance(found, nnx.RngStream) else found

    def set_view(self, deterministic: bool | None = None) -> None:
        """Set what `nnx.view` may change.

        Args:
          deterministic: True evaluates, False trains.
        """
        if deterministic is not None:
            self.deterministic = deterministic
