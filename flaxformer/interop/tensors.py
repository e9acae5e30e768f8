"""Tensors of another library's file, by name, and the weights of ours that lie in them, by path: the same numbers.

>>> Row("attn.c_attn.bias", ("attention/query_bias", "attention/key_bias", "attention/value_bias"), VECTOR)
"""

import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from flaxformer.params import ParametersT, Spec, path_name
from flaxformer.struct import UserError

SHOWN = 5
"""Problems that one message names."""


class TensorLayout(NamedTuple):
    """Layout of one of our weights in a file: its shape there, the way from there, and the way back, its inverse.

    axis: along which several weights stand one after the other in one tensor.
    """

    shape: Callable[[Spec], tuple[int, ...]]
    load: Callable[[np.ndarray, Spec], np.ndarray]
    save: Callable[[np.ndarray, Spec], np.ndarray]
    axis: int = 0


MATRIX = TensorLayout(
    shape=lambda spec: (spec.fan_out, spec.fan_in),
    load=lambda weight, spec: weight.T.reshape(spec.shape),
    save=lambda weight, spec: weight.reshape(spec.fan_in, spec.fan_out).T,
)
"""[out, in] there; [*in, *out] here, with the heads an axis of their own."""
INPUT_FIRST = TensorLayout(
    shape=lambda spec: (spec.fan_in, spec.fan_out),
    load=lambda weight, spec: weight.reshape(spec.shape),
    save=lambda weight, spec: weight.reshape(spec.fan_in, spec.fan_out),
    axis=1,
)
"""[in, out] there."""
VECTOR = TensorLayout(
    shape=lambda spec: (spec.fan_out,),
    load=lambda weight, spec: weight.reshape(spec.shape),
    save=lambda weight, spec: weight.reshape(-1),
)
TABLE = TensorLayout(
    shape=lambda spec: spec.shape,
    load=lambda weight, spec: weight,
    save=lambda weight, spec: weight,
)
"""As it is."""


class TensorRow(NamedTuple):
    """A tensor of a file, by name, and the weights of ours that lie in it one after the other, by path."""

    name: str
    paths: tuple[str, ...]
    layout: TensorLayout


def linear(name: str, path: str, layout: TensorLayout = MATRIX) -> tuple[TensorRow, TensorRow]:
    """A matrix and its bias."""
    return TensorRow(f"{name}.weight", (path,), layout), TensorRow(f"{name}.bias", (f"{path}_bias",), VECTOR)


def norm(name: str, path: str) -> tuple[TensorRow, TensorRow]:
    """A norm's gain and bias."""
    return TensorRow(f"{name}.weight", (f"{path}/gain",), VECTOR), TensorRow(f"{name}.bias", (f"{path}/bias",), VECTOR)


def within(name: str, path: str, rows: Iterable[TensorRow]) -> tuple[TensorRow, ...]:
    """The rows of a module that is part of another."""
    return tuple(TensorRow(name + row.name, tuple(path + own for own in row.paths), row.layout) for row in rows)


def layers(name: str, path: str, rows: tuple[TensorRow, ...], count: int) -> tuple[TensorRow, ...]:
    """The rows of a stack of equal layers, numbered from 0."""
    return tuple(row for i in range(count) for row in within(f"{name}.{i}.", f"{path}/{i}/", rows))


def declared(rows: Iterable[TensorRow], specs: Any) -> list[TensorRow]:
    """The rows whose weights the config declares; a bias that is left out has none."""
    paths = _by_path(specs)
    return [row for row in rows if row.paths[0] in paths]


def shapes(rows: Iterable[TensorRow], specs: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor."""
    paths = _by_path(specs)
    return {row.name: _shape(row, paths) for row in rows}


def from_tensors(
    rows: Iterable[TensorRow], specs: ParametersT, state: Mapping[str, ArrayLike], what: str
) -> ParametersT:
    """The weights in float32.

    Raises:
      UserError: a tensor is missing, unexpected, of another shape or no floating-point numbers: named, with the shape
        found and the shape expected.
    """
    rows, paths = list(rows), _by_path(specs)
    arrays = {name: np.asarray(tensor) for name, tensor in state.items()}
    refuse_others(arrays, shapes(rows, specs), what)
    weights = {}
    for row in rows:
        ends = np.cumsum([row.layout.shape(paths[path])[row.layout.axis] for path in row.paths])
        parts = np.split(arrays[row.name], ends[:-1], axis=row.layout.axis)
        for path, part in zip(row.paths, parts, strict=True):
            # A copy: on a CPU, JAX would share the memory of an array that its owner may change.
            weights[path] = jnp.array(row.layout.load(part, paths[path]), jnp.float32)
    return jax.tree_util.tree_map_with_path(lambda path, spec: weights[path_name(path)], specs)


def to_tensors(rows: Iterable[TensorRow], specs: ParametersT, params: ParametersT, what: str) -> dict[str, np.ndarray]:
    """The inverse of `from_tensors`.

    Raises:
      UserError: the weights are not those that the specs declare: named, with both shapes.
    """
    paths = _by_path(specs)
    weights = {path: np.asarray(weight) for path, weight in _by_path(params).items()}
    refuse_others(weights, {path: spec.shape for path, spec in paths.items()}, what)
    tensors = {}
    for row in rows:
        parts = [row.layout.save(weights[path], paths[path]) for path in row.paths]
        tensors[row.name] = np.ascontiguousarray(np.concatenate(parts, axis=row.layout.axis), np.float32)
    return tensors


def refuse_others(found: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Refuse arrays that are not those expected; what differs is named, each with both shapes."""
    problems = list(itertools.islice(_problems(found, expected), SHOWN + 1))
    if problems:
        more = ["and more"] if len(problems) > SHOWN else []
        raise UserError("\n  ".join([f"{what}:", *problems[:SHOWN], *more]))


def _problems(found: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for name, shape in expected.items():
        if name not in found or found[name].shape != shape:
            yield f"'{name}' is {'missing' if name not in found else found[name].shape}; expected {shape}"
    for name, array in found.items():
        if name not in expected:
            near = difflib.get_close_matches(name, expected, n=1)  # never all names: there may be thousands
            hint = f"; did you mean '{near[0]}'?" if near else ""
            yield f"'{name}' is {array.shape}; expected no such tensor{hint}"
        elif not jnp.issubdtype(array.dtype, jnp.floating):
            yield f"'{name}' is of {array.dtype}; expected floating-point numbers"


def _by_path(tree: Any) -> dict[str, Any]:
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _shape(row: TensorRow, paths: Mapping[str, Spec]) -> tuple[int, ...]:
    parts = [list(row.layout.shape(paths[path])) for path in row.paths]
    whole, axis = parts[0], row.layout.axis
    whole[axis] = sum(part[axis] for part in parts)
    return tuple(whole)
