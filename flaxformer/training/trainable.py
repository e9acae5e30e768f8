"""Trained and frozen weights of a run, and the factors of their learning rates, by path.

A weight is trained if its declaration says so, no pattern of `Training.freeze` matches its path, and, with an adapter,
it is among the weights that the adapter trains. The optimizer sees the trained weights alone: a frozen weight has no
update, no weight decay, no state of the optimizer and no part in the norm of the gradient.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
from jaxtyping import PyTree

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.core import params
from flaxformer.core.params import AdaptedWeight, Spec, path_name
from flaxformer.core.patterns import matches, unmatched_patterns, without_numbers
from flaxformer.core.struct import Config, leaf, static
from flaxformer.core.weight_axes import Axes, axes
from flaxformer.model.layout import Layout
from flaxformer.model.weights import Transformer, stack_like
from flaxformer.training.adapters import Adapter, is_adapted

T = TypeVar("T")


class Rate(Config):
    """Factor of the learning rate for the weights that a pattern matches; their weight decay is scaled with it.

    weights: patterns of the paths, such as "embedding/*" (`core.patterns`).
    """

    weights: tuple[str, ...] = static()
    factor: float = leaf(at_least=0)


@dataclasses.dataclass(frozen=True)
class Trainable:
    """Trained weights of a run: the fields of the run that decide which they are, and how fast each is trained."""

    model: ModelConfig
    freeze: tuple[str, ...]
    rates: tuple[Rate, ...]
    adapter: Adapter | None

    def problems(self) -> Iterator[str]:
        """Yield a message for each pattern that matches no weight, and for each weight that two rates match."""
        by_field = {"training.freeze": self.freeze}
        by_field |= {f"training.rates.{number}.weights": rate.weights for number, rate in enumerate(self.rates)}
        if self.adapter is not None:
            by_field |= {"adapter.weights": self.adapter.weights, "adapter.trained": self.adapter.trained}
        if not any(by_field.values()):
            return
        tree = model.specs(self.model)
        specs = dict(params.table(tree))
        unmatched = [
            problem for where, patterns in by_field.items() for problem in unmatched_patterns(where, patterns, specs)
        ]
        yield from unmatched
        twice = [path for path in specs if sum(matches(path, rate.weights) for rate in self.rates) > 1]
        for path in without_numbers(twice):
            yield f"training.rates gives {path} two factors; expected at most one"
        own_axes = zip(specs, jax.tree.leaves(axes(tree), is_leaf=lambda node: isinstance(node, Axes)), strict=True)
        vectors = [path for path, weight_axes in own_axes if self._is_adapted(path) and weight_axes.as_matrix is None]
        if vectors:
            listed = ", ".join(without_numbers(vectors))
            yield f"adapter.weights matches {listed}, which are not matrices; expected patterns of matrices alone"
        both = [path for path in specs if self._is_adapted(path) and matches(path, self.freeze)]
        for path in without_numbers(both):
            yield f"training.freeze and adapter.weights match {path}; expected one (an adapter freezes its weight)"
        if not unmatched and not any(
            self._is_trained(path, spec) or self._is_adapted(path) for path, spec in specs.items()
        ):
            yield f"training.freeze is {self.freeze}, which freezes every weight; expected one that is trained"

    def mask(self, tree: Transformer) -> Transformer:
        """Return a tree like the weights with True at the arrays that gradients change."""

        def mark(is_trained: bool, node: PyTree) -> PyTree:
            return (
                AdaptedWeight(base=False, adapter=dict.fromkeys(node.adapter, True)) if is_adapted(node) else is_trained
            )

        return jax.tree.map(mark, self._over_weights(tree, self._is_trained), tree)

    def frozen_by_pattern(self, tree: Transformer) -> Transformer:
        """Return a tree like the weights with True where `freeze` matches: there, the forward pass changes nothing."""
        frozen = self._over_weights(tree, lambda path, _: matches(path, self.freeze))
        return jax.tree.map(lambda is_frozen, node: jax.tree.map(lambda _: is_frozen, node), frozen, tree)

    def scale(self, updates: Transformer) -> Transformer:
        """Return the updates of the trained weights times the factors of their rates."""
        if not self.rates:
            return updates

        def scaled(number: int, node: PyTree) -> PyTree:
            return node if number < 0 else jax.tree.map(lambda x: x * self.rates[number].factor, node)

        return jax.tree.map(scaled, self._over_weights(updates, lambda path, _: self._rate(path)), updates)

    def layout(self, layout: Layout) -> Layout:
        """Return the layout, or "unrolled" where patterns treat layers that would be stacked differently."""
        seen: dict[str, set[object]] = {}
        has_patterns = self.freeze or self.rates or self.adapter is not None
        for path, spec in params.table(model.specs(self.model)) if has_patterns else ():
            [name] = without_numbers([path])
            kind = self._is_trained(path, spec), self._is_adapted(path), self._rate(path), matches(path, self.freeze)
            seen.setdefault(name, set()).add(kind)
        return "unrolled" if any(len(kinds) > 1 for kinds in seen.values()) else layout

    def _over_weights(self, tree: Transformer, function: Callable[[str, Spec], T]) -> Transformer:
        """A function of the path and `Spec` of each weight, in the layout of a tree of weights."""
        specs = model.specs(self.model)
        values = jax.tree_util.tree_map_with_path(lambda path, spec: function(path_name(path), spec), specs)
        return stack_like(values, tree)

    def _is_trained(self, path: str, spec: Spec) -> bool:
        """True if a weight itself is trained; of a weight with an adapter, that is its adapter."""
        adapter = self.adapter
        by_adapter = adapter is None or (matches(path, adapter.trained) and not matches(path, adapter.weights))
        return spec.trained and by_adapter and not matches(path, self.freeze)

    def _is_adapted(self, path: str) -> bool:
        return self.adapter is not None and matches(path, self.adapter.weights)

    def _rate(self, path: str) -> int:
        """The number of the rate of a weight; -1 for none."""
        return next((number for number, rate in enumerate(self.rates) if matches(path, rate.weights)), -1)


def select(tree: Transformer, mask: Transformer) -> Transformer:
    """Return the tree with None where the mask is False."""
    return jax.tree.map(lambda is_selected, leaf: leaf if is_selected else None, mask, tree)


def insert(selected: Transformer, tree: Transformer, mask: Transformer) -> Transformer:
    """Return the tree with the values of `selected` where the mask is True: the inverse of `select`."""
    return jax.tree.map(lambda is_selected, leaf, new: new if is_selected else leaf, mask, tree, selected)
