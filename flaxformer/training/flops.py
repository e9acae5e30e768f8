"""FLOPs of one training step, counted in the traced program of any model, with shapes alone.

FLOPs are those of matrix products, convolutions and triangular solves in the forward pass, the backward pass and the
optimizer. A decoder-only model of L layers that is trained by AdamW has 6 N + 12 L d T per token for N weights in
products (Kaplan et al. 2020, table 1, with attention over all T tokens, masked or not).

The way in which a step is computed does not count: neither `Training.remat`, `micro_batches` and `precision`, nor the
kernel of attention. Equal configs therefore have equal FLOPs on every machine. A loop counts as often as it runs, and
of the branches of a condition the largest one counts.

A primitive that is not listed has no FLOPs. A component with a kernel of its own adds a formula:

>>> FORMULAS["my_kernel"] = lambda equation: 2 * math.prod(equation.outvars[0].aval.shape) * 64
"""

import functools
import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.interpreters import partial_eval

from flaxformer.core.paths import replace_at
from flaxformer.nn.formulations import using
from flaxformer.tasks.batch import Source, batch_shapes
from flaxformer.training.run import Run
from flaxformer.training.step import start, train_step

Formula = Callable[[JaxprEqn], int]
_COUNTED: dict[Hashable, tuple[int, tuple[str, ...]]] = {}
_COUNTING = threading.Lock()


def flops_per_step(run: Run, source: Source | None = None) -> int:
    """Return the FLOPs of one training step; nothing is compiled or computed.

    Args:
      source: data of the run's task; by default they are loaded.
    """
    return _count(run, source)[0]


def flops_by_scope(run: Run, source: Source | None = None) -> dict[str, int]:
    """Return the FLOPs of one training step by scope of its operations, such as "transpose(jvp(block_0))/attention".

    Their sum is `flops_per_step`.
    """
    run = standard_form(run)
    counts: dict[str, int] = {}
    for scope, flops in _scoped(_step(run, run.task.load() if source is None else source), ""):
        counts[scope] = counts.get(scope, 0) + flops
    return counts


def _scoped(jaxpr: Jaxpr, outer: str) -> Iterator[tuple[str, int]]:
    """Yield the FLOPs of each operation with its scope; of a condition, those of its largest branch."""
    for equation in jaxpr.eqns:
        scope = "/".join(filter(None, (outer, str(equation.source_info.name_stack))))
        if equation.primitive.name in FORMULAS:
            yield scope, FORMULAS[equation.primitive.name](equation)
            continue
        programs = list(_inner(equation.params.values()))
        if equation.primitive.name == "cond":
            programs = sorted(programs, key=products_of)[-1:]
        repetitions = _repetitions(equation)
        for program in programs:
            yield from ((inner, repetitions * flops) for inner, flops in _scoped(program, scope))


def uncounted_primitives(run: Run, source: Source | None = None) -> tuple[str, ...]:
    """Return the names of primitives in a training step whose FLOPs are unknown or depend on the data.

    With any, `flops_per_step` is a lower bound.
    """
    return _count(run, source)[1]


def _count(run: Run, source: Source | None) -> tuple[int, tuple[str, ...]]:
    """FLOPs and unknown primitives of a step, counted once per structure of a run."""
    run = standard_form(run)
    key = jax.tree.structure(run)
    with _COUNTING:
        if key not in _COUNTED:
            jaxpr = _step(run, run.task.load() if source is None else source)
            _COUNTED[key] = products_of(jaxpr), tuple(sorted(set(_unknown_primitives(jaxpr))))
        return _COUNTED[key]


def standard_form(run: Run) -> Run:
    """Return a run of one step without what does not count: float32, whole batches, no recomputation.

    In float32, attention is computed by products, and by no fused kernel whose FLOPs a trace does not show.
    """
    how = {"precision": "float32", "remat": "none", "micro_batches": 1, "steps": 1, "evaluate_every": None}
    return replace_at(run, {f"training.{name}": value for name, value in how.items()})


def _step(run: Run, source: Source) -> Jaxpr:
    """The program of a training step, without operations whose results are not used."""
    run = jax.tree.map(jnp.asarray, run.without_init)
    state = jax.eval_shape(functools.partial(start, layout="auto"), run)
    with using("reference"):  # tiles leave out what is masked, and a fused kernel's products are not in the trace
        traced = jax.make_jaxpr(train_step)(state, run, batch_shapes(source)).jaxpr
    return partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars), instantiate=True)[0]


def products_of(jaxpr: Jaxpr) -> int:
    """Return the FLOPs of a program by `FORMULAS`; loops of unknown length count once."""
    return sum(map(_flops, jaxpr.eqns))


def _flops(equation: JaxprEqn) -> int:
    name, params = equation.primitive.name, equation.params
    if name in FORMULAS:
        return FORMULAS[name](equation)
    inner = [products_of(jaxpr) for jaxpr in _inner(params.values())]
    if name == "cond":
        return max(inner, default=0)
    return _repetitions(equation) * sum(inner)


def _repetitions(equation: JaxprEqn) -> int:
    """Number of times that the programs within an equation run: a scan's length, a Pallas kernel's grid, else 1."""
    grid = getattr(equation.params.get("grid_mapping"), "grid", ())
    return int(equation.params.get("length", 1)) * math.prod(size for size in grid if isinstance(size, int))


def _unknown_primitives(jaxpr: Jaxpr) -> Iterator[str]:
    """Names of primitives without a formula that may have many FLOPs, and of loops of unknown length."""
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, list(_inner(equation.params.values()))
        if name in FORMULAS:
            continue
        grid = getattr(equation.params.get("grid_mapping"), "grid", ())
        has_unknown_length = name == "while" or not all(isinstance(size, int) for size in grid)
        if name in UNKNOWN or (has_unknown_length and any(map(products_of, inner))):
            yield name
        for program in inner:
            yield from _unknown_primitives(program)


def _inner(values: Iterable[object]) -> Iterator[Jaxpr]:
    """The programs within an equation's parameters."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _inner(value)
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, ClosedJaxpr):
            yield value.jaxpr


def _shape(variable: Var | Literal) -> tuple[int, ...]:
    """The shape of an equation's input or output."""
    assert isinstance(variable.aval, jax.core.ShapedArray)
    return tuple(variable.aval.shape)


def _dot(equation: JaxprEqn) -> int:
    """2 · outputs · summed entries."""
    (over, _), _ = equation.params["dimension_numbers"]
    return 2 * math.prod(_shape(equation.outvars[0])) * math.prod(_shape(equation.invars[0])[axis] for axis in over)


def _ragged_dot(equation: JaxprEqn) -> int:
    """2 · outputs · summed entries, where each row meets the matrix of its own group alone."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (over, _), _ = numbers.dot_dimension_numbers
    left, outputs = _shape(equation.invars[0]), math.prod(_shape(equation.outvars[0]))
    groups = _shape(equation.invars[2])[-1] if set(numbers.lhs_ragged_dimensions) <= set(over) else 1
    return 2 * outputs * math.prod(left[axis] for axis in over) // groups


def _convolution(equation: JaxprEqn) -> int:
    """2 · outputs · entries of the kernel of one output channel."""
    kernel, channels = _shape(equation.invars[1]), equation.params["dimension_numbers"].rhs_spec[0]
    return 2 * math.prod(_shape(equation.outvars[0])) * math.prod(kernel) // kernel[channels]


def _triangular_solve(equation: JaxprEqn) -> int:
    """n FLOPs per entry of the solution, for a matrix of n × n."""
    return _shape(equation.invars[0])[-1] * math.prod(_shape(equation.outvars[0]))


def _cholesky(equation: JaxprEqn) -> int:
    """n³ / 3 per matrix of n × n."""
    return math.prod(_shape(equation.outvars[0])) * _shape(equation.outvars[0])[-1] // 3


FORMULAS: dict[str, Formula] = {
    "dot_general": _dot,
    "ragged_dot_general": _ragged_dot,
    "conv_general_dilated": _convolution,
    "triangular_solve": _triangular_solve,
    "cholesky": _cholesky,
}
"""FLOPs of a primitive by its name; a program may add its own."""
UNKNOWN = {"ffi_call", "custom_call", "pure_callback", "io_callback", "eigh", "svd", "qr", "lu", "schur", "fft"}
"""Primitives that may have many FLOPs, of which a trace does not show how many."""
