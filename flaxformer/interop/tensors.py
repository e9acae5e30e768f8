"""Tables that map the tensors of another library's file, by name, to weights of this package, by path.

>>> TensorRow("attn.c_attn.bias", ("attention/query_bias", "attention/key_bias", "attention/value_bias"), VECTOR)
"""

import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import PyTree

from flaxformer.core.params import ParametersT, Spec, path_name
from flaxformer.system.errors import UserError

MOST_PROBLEMS = 5
"""Number of problems that one error message lists."""


class TensorLayout(NamedTuple):
    """Layout of a weight in a file: its shape there, and functions that convert from the file and to the file.

    axis: the axis along which several weights are concatenated in one tensor.
    joined: function from the shape of the concatenation to that of the tensor, for weights that alternate in it.
    """

    shape: Callable[[Spec], tuple[int, ...]]
    load: Callable[[np.ndarray, Spec], np.ndarray]
    save: Callable[[np.ndarray, Spec], np.ndarray]
    axis: int = 0
    joined: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda shape: shape


MATRIX = TensorLayout(
    shape=lambda spec: (spec.fan_out, spec.fan_in),
    load=lambda weight, spec: weight.T.reshape(spec.shape),
    save=lambda weight, spec: weight.reshape(spec.fan_in, spec.fan_out).T,
)
"""[out, in] in the file; [*in, *out] in this package, with a separate axis for heads."""
INPUT_FIRST = TensorLayout(
    shape=lambda spec: (spec.fan_in, spec.fan_out),
    load=lambda weight, spec: weight.reshape(spec.shape),
    save=lambda weight, spec: weight.reshape(spec.fan_in, spec.fan_out),
    axis=1,
)
"""[in, out] in the file."""
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
"""The same shape in the file and in this package."""


class TensorRow(NamedTuple):
    """A tensor of a file, by name, and the weights that are concatenated in it, by path."""

    name: str
    paths: tuple[str, ...]
    layout: TensorLayout


def linear(name: str, path: str, layout: TensorLayout = MATRIX) -> tuple[TensorRow, TensorRow]:
    """Return the rows of a matrix and its bias."""
    return TensorRow(f"{name}.weight", (path,), layout), TensorRow(f"{name}.bias", (f"{path}_bias",), VECTOR)


def norm(name: str, path: str) -> tuple[TensorRow, TensorRow]:
    """Return the rows of a norm's gain and bias."""
    return TensorRow(f"{name}.weight", (f"{path}/gain",), VECTOR), TensorRow(f"{name}.bias", (f"{path}/bias",), VECTOR)


def within(name: str, path: str, rows: Iterable[TensorRow]) -> tuple[TensorRow, ...]:
    """Return the rows of a module that is part of another one, with prefixes for its names and paths."""
    return tuple(TensorRow(name + row.name, tuple(path + inner for inner in row.paths), row.layout) for row in rows)


def layers(name: str, path: str, rows: tuple[TensorRow, ...], count: int) -> tuple[TensorRow, ...]:
    """Return the rows of a stack of equal layers, numbered from 0."""
    return tuple(row for i in range(count) for row in within(f"{name}.{i}.", f"{path}/{i}/", rows))


def declared_rows(rows: Iterable[TensorRow], specs: PyTree[Spec]) -> list[TensorRow]:
    """Return the rows whose weights a config declares, without those of absent biases."""
    paths = _by_path(specs)
    return [row for row in rows if row.paths[0] in paths]


def tensor_shapes(rows: Iterable[TensorRow], specs: PyTree[Spec]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor by name."""
    paths = _by_path(specs)
    return {row.name: row.layout.joined(_shape(row, paths)) for row in rows}


def from_tensors(
    rows: Iterable[TensorRow],
    specs: ParametersT,
    state: Mapping[str, ArrayLike],
    what: str,
    dtype: DTypeLike | None = jnp.float32,
) -> ParametersT:
    """Convert tensors to weights.

    Args:
      rows: the tensors of the file.
      specs: declarations of the weights.
      state: tensors by name.
      what: name of the tensors in error messages.
      dtype: that of the weights; None for that of each tensor.

    Raises:
      UserError: a tensor is missing, unexpected, of another shape or not of floating-point numbers; the message has its
        name, the shape found and the shape expected.
    """
    rows, paths = list(rows), _by_path(specs)
    arrays = {name: host_array(tensor) for name, tensor in state.items()}
    check_arrays(arrays, tensor_shapes(rows, specs), what)
    weights = {}
    for row in rows:
        ends = np.cumsum([row.layout.shape(paths[path])[row.layout.axis] for path in row.paths])
        parts = np.split(arrays[row.name].reshape(_shape(row, paths)), ends[:-1], axis=row.layout.axis)
        for path, part in zip(row.paths, parts, strict=True):
            # A copy, since on a CPU JAX might share memory with an array that the caller changes later.
            weights[path] = jnp.array(row.layout.load(part, paths[path]), dtype)
    return jax.tree_util.tree_map_with_path(lambda path, spec: weights[path_name(path)], specs)


def to_tensors(rows: Iterable[TensorRow], specs: ParametersT, params: ParametersT, what: str) -> dict[str, np.ndarray]:
    """Convert weights to tensors by name, in float32 or the narrower type of the weight; inverse of `from_tensors`.

    Raises:
      UserError: the weights differ from their declarations; the message has names and both shapes.
    """
    paths = _by_path(specs)
    weights = {path: np.asarray(weight) for path, weight in _by_path(params).items()}
    check_arrays(weights, {path: spec.shape for path, spec in paths.items()}, what)
    tensors = {}
    for row in rows:
        parts = [row.layout.save(weights[path], paths[path]) for path in row.paths]
        tensor = np.concatenate(parts, axis=row.layout.axis)
        dtype = tensor.dtype if tensor.dtype.itemsize < 4 else np.float32
        tensors[row.name] = np.ascontiguousarray(tensor.reshape(row.layout.joined(tensor.shape)), dtype)
    return tensors


def host_array(tensor: Any) -> np.ndarray:
    """Return a tensor as a NumPy array; one of torch may be of bfloat16, require a gradient, or be on a device.

    Raises:
      UserError: it is not an array.
    """
    array: Any = tensor
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    try:
        if str(getattr(array, "dtype", "")) == "torch.bfloat16":  # of which NumPy has none
            return np.asarray(array.float()).astype(jnp.bfloat16)
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"a tensor is {type(tensor).__name__}, which NumPy cannot read ({error})") from None


def check_arrays(arrays: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Check names, shapes and kinds of arrays.

    Raises:
      UserError: with each name that differs, and both shapes.
    """
    problems = list(itertools.islice(_problems(arrays, expected), MOST_PROBLEMS + 1))
    if problems:
        more = ["and more"] if len(problems) > MOST_PROBLEMS else []
        raise UserError("\n  ".join([f"{what}:", *problems[:MOST_PROBLEMS], *more]))


def _problems(arrays: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for name, shape in expected.items():
        if name not in arrays or arrays[name].shape != shape:
            yield f"'{name}' is {'missing' if name not in arrays else arrays[name].shape}; expected {shape}"
    for name, array in arrays.items():
        if name not in expected:
            near = difflib.get_close_matches(name, expected, n=1)  # not all names, since there may be thousands
            hint = f"; did you mean '{near[0]}'?" if near else ""
            yield f"'{name}' is {array.shape}; expected no such tensor{hint}"
        elif not jnp.issubdtype(array.dtype, jnp.floating):
            yield f"'{name}' is of {array.dtype}; expected floating-point numbers"


def _by_path(tree: PyTree) -> dict[str, PyTree]:
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _shape(row: TensorRow, paths: Mapping[str, Spec]) -> tuple[int, ...]:
    parts = [list(row.layout.shape(paths[path])) for path in row.paths]
    total, axis = parts[0], row.layout.axis
    total[axis] = sum(part[axis] for part in parts)
    return tuple(total)
