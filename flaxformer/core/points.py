"""Named points of a forward pass, at which activations are read and edited.

The path of a point is the part of the model and the name of the activation: "embedded", "blocks/3/attention/heads",
"encoder/blocks/0/feed_forward/output", "final". `Context.edit` is the only place where an activation gets such a name:
there, the edits of a call are applied to it, and it is recorded if intermediates are asked for.
"""

import dataclasses
import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from flaxformer.system.errors import UserError

Edit = Callable[[PyTree], PyTree]
"""Function of the activation at a point, which returns an activation of the same shape and dtype.

A function that selects tokens by their number in the sequence has a method `after`, as those of `interpret` have:
during decoding, `edit.after(count)` is the edit of tokens that follow `count` others.
"""


def edit_after(function: Edit, count: int | Int[Array, ""]) -> Edit:
    """Return the edit of tokens that follow `count` others; a function without a method `after` is returned itself."""
    return function.after(count) if hasattr(function, "after") else function


@dataclasses.dataclass(frozen=True, eq=False)
class Edits:
    """Edits of one call, as seen from one part of the model.

    Args:
      functions: the edits by path or pattern of paths, applied in this order where several match one point.
      matched: patterns that have matched a point so far; shared by all parts of the model.
      stack: "encoder/" within an encoder.
      layers: numbers of the layers that the traced code computes: one if layers are unrolled, several in a scan; none
        outside of the layers.
      branch: name of the branch.
      count: number of tokens before those of the activations, during decoding; None for activations of whole sequences.
      edits_prefix: True if the edits are applied within a mixer that reads the whole prefix again at every step, to the
        activations of all tokens so far.
    """

    functions: Mapping[str, Edit]
    matched: set[str]
    stack: str = ""
    layers: tuple[int, ...] = ()
    branch: str = ""
    count: int | Int[Array, ""] | None = None
    edits_prefix: bool = False

    @classmethod
    def of(cls, functions: Mapping[str, Edit] | None) -> Self | None:
        """Return the edits of a call; None if there are none.

        Raises:
          UserError: it is not a mapping from paths to functions.
        """
        if functions is None:
            return None
        if not isinstance(functions, Mapping):
            kind = type(functions).__name__
            raise UserError(f"edit is a {kind}; expected a mapping from paths of points to functions")
        for path, function in functions.items():
            if not isinstance(path, str):
                raise UserError(f"edit has the key {path!r}; expected the path of a point, as text")
            if not callable(function):
                raise UserError(f"edit['{path}'] is {function!r:.60}; expected a function of the activation")
        return cls(functions, set()) if functions else None

    def after(self, count: int | Int[Array, ""] | None) -> Self:
        """Return the edits of activations of tokens that follow `count` others; None for those of whole sequences."""
        return dataclasses.replace(self, count=count)

    def paths(self, name: str) -> list[str]:
        """Return the paths of the point with a name, one per layer that the traced code computes."""
        if not self.layers:
            return [f"{self.stack}{name}"]
        return [f"{self.stack}blocks/{layer}/{self.branch}/{name}" for layer in self.layers]

    def reach(self, name: str) -> bool:
        """True if an edit matches the point with a name."""
        return any(fnmatch.fnmatchcase(path, pattern) for path in self.paths(name) for pattern in self.functions)

    def apply(self, name: str, x: PyTree, layer: int | Int[Array, ""] | None) -> PyTree:
        """Return the activation after the edits that match its point.

        Args:
          name: name of the point within this part of the model.
          x: the activation.
          layer: number of the layer, which is traced in a scan.

        Raises:
          UserError: an edit returns another shape or dtype.
        """
        paths = self.paths(name)
        for pattern, function in self.functions.items():
            matches = [number for number, path in enumerate(paths) if fnmatch.fnmatchcase(path, pattern)]
            if not matches:
                continue
            self.matched.add(pattern)
            edit = function if self.count is None else edit_after(function, self.count)
            call = checked_edit(edit, pattern, paths[matches[0]])
            if len(matches) == len(paths):
                x = call(x)
            else:  # a scan computes these layers by the same code
                numbers = jnp.array([self.layers[number] for number in matches])
                x = jax.lax.cond(jnp.isin(jnp.asarray(layer), numbers), call, lambda x: x, x)
        return x

    def check_matched(self, known: Callable[[], Sequence[str]]) -> None:
        """Check that every edit has matched a point; call it after the forward pass.

        Args:
          known: function that returns the paths of all points, called for a message alone.

        Raises:
          UserError: an edit has matched none; the message lists the points, the nearest first.
        """
        for pattern in self.functions:
            if pattern not in self.matched:
                raise unknown_point("edit", pattern, known())


def unknown_point(where: str, pattern: str, paths: Sequence[str]) -> UserError:
    """Return the error that a pattern matches no point, with the nearest path and a list of all points."""
    near = difflib.get_close_matches(pattern, paths, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return UserError(f"{where} has '{pattern}', which matches no point of this model{hint} It has: {summarise(paths)}")


def summarise(paths: Sequence[str]) -> str:
    """Return paths as a list, one entry per branch for all layers: "blocks/0-3/attention/(input, query, …)"."""
    layers: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        stack, is_layered, within_blocks = path.partition("blocks/")
        number, _, place = within_blocks.partition("/")
        key = (stack + is_layered, place) if is_layered else (path, "")
        layers.setdefault(key, []).extend([number] if is_layered else [])
    names: dict[str, list[str]] = {}
    for (start, place), numbers in layers.items():
        branch, _, name = place.rpartition("/")
        entry = f"{start}{_format_numbers(numbers)}/{branch}/" if place else start
        names.setdefault(entry, []).extend([name] if place else [])
    return ", ".join(
        f"{entry}({', '.join(point_names)})" if point_names else entry for entry, point_names in names.items()
    )


def _format_numbers(numbers: Sequence[str]) -> str:
    """Return consecutive numbers as a range, others as a list."""
    first, last = int(numbers[0]), int(numbers[-1])
    is_range = len(numbers) > 2 and last - first + 1 == len(numbers)
    return f"{first}-{last}" if is_range else ",".join(numbers)


def checked_edit(function: Edit, pattern: str, path: str) -> Edit:
    """Return the edit with a check of its result."""

    def call(x: PyTree) -> PyTree:
        y = function(x)
        if [jax.tree.structure(x)] != [jax.tree.structure(y)]:
            raise UserError(f"edit['{pattern}'] returns {_kind(y)} at {path}; expected {_kind(x)}, as it was given")
        return jax.tree.map(lambda new, old: _same(new, old, pattern, path), y, x)

    return call


def _same(new: Array, old: Array, pattern: str, path: str) -> Array:
    """Return the new activation if it has shape and dtype of the old one."""
    new = jnp.asarray(new)
    if (new.shape, new.dtype) != (old.shape, old.dtype):
        raise UserError(f"edit['{pattern}'] returns {_kind(new)} at {path}; expected {_kind(old)}, as it was given")
    return jax.lax.convert_element_type(new, old.dtype)


def _kind(x: PyTree) -> str:
    """Return shape and dtype of an array, or the type of another value."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return "None" if x is None else f"a {type(x).__name__}"
    return f"{x.dtype}{list(x.shape)}"
