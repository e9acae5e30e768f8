"""Weights as Flax NNX variables, and the base of modules that have a tree of them."""

import dataclasses
from typing import TypeVar

import jax
from flax import nnx
from jaxtyping import Array, PyTree

from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters
from flaxformer.interop import flax_modules

Randomness = nnx.Rngs | nnx.RngStream | Array
ParametersT = TypeVar("ParametersT", bound=Parameters)


class Frozen(nnx.Variable):
    """Variable of a weight that training does not change."""


KINDS: dict[str, type[nnx.Variable]] = {"params": nnx.Param, "batch_stats": nnx.BatchStat, "frozen": Frozen}
"""Class of the variables of each collection."""


def to_variables(params: ParametersT, config: ModelConfig) -> ParametersT:
    """Return the same tree with each weight in a variable."""
    return wrap_in_variables(flax_modules.collections(params, config), params)


def wrap_in_variables(names: PyTree[str], params: ParametersT) -> ParametersT:
    """Return a tree of weights with each in a variable of the class of its collection."""
    return jax.tree.map(lambda name, weight: KINDS[name](weight), names, params)


def is_variable(node: object) -> bool:
    """True if a node is a variable, which JAX sees as a tree."""
    return isinstance(node, nnx.Variable)


class Holder(nnx.Module):
    """Base of modules whose attributes are the fields of a tree of weights."""

    config: ModelConfig
    deterministic: bool | None

    def _set_variables(self, variables: Parameters, config: ModelConfig) -> None:
        """Make the fields of a tree of variables attributes of the module."""
        self.config = nnx.static(config)
        self.parameters_class = type(variables)
        for field in dataclasses.fields(variables):
            setattr(self, field.name, nnx.data(getattr(variables, field.name)))

    @property
    def _variables(self) -> PyTree[nnx.Variable]:
        names = [field.name for field in dataclasses.fields(self.parameters_class)]
        return self.parameters_class(**{name: getattr(self, name) for name in names})

    @property
    def params(self) -> PyTree[Array]:
        """The weights as the pure tree for `flaxformer.model.apply`."""
        return jax.tree.map(lambda variable: variable[...], self._variables, is_leaf=is_variable)

    def _set_rngs(self, rngs: nnx.Rngs | None, is_needed: bool) -> None:
        self.rngs = nnx.data(rngs.dropout.fork() if rngs is not None and is_needed else None)

    def _is_deterministic(self, deterministic: bool | None) -> bool:
        return nnx.module.first_from(
            deterministic,
            self.deterministic,
            error_msg=f"deterministic is None; {type(self).__name__} expects True or False, in the call or constructor",
        )

    def _key(self, rngs: Randomness | None) -> Array:
        found = nnx.module.first_from(
            rngs, self.rngs, error_msg="deterministic is False and rngs is None; expected rngs to draw dropout from"
        )
        if isinstance(found, nnx.Rngs):
            return found.dropout()
        return found() if isinstance(found, nnx.RngStream) else found

    def set_view(self, deterministic: bool | None = None) -> None:
        """Set the attributes that `nnx.view` may change.

        Args:
          deterministic: True evaluates, False trains.
        """
        if deterministic is not None:
            self.deterministic = deterministic
