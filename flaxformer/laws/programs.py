"""Compilation of functions that run a few times, and traced programs as equations and as text."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxprs_in_params

from flaxformer.training.compiling import CompilerOptions, known_options

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
FAST: CompilerOptions = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""XLA options for programs that run a few times, where compilation takes most of the time."""


def fast_jit(function: Callable[P, ResultT], **options: str | bool) -> Callable[P, ResultT]:
    """Return `jax.jit(function)` for functions that run a few times: on a CPU, with little optimization.

    JAX starts at the first call, which needs the platform, and not when a module is imported.
    """

    @functools.cache
    def compile_once() -> Callable[P, ResultT]:
        defaults = known_options(FAST) if jax.default_backend() == "cpu" else {}
        return jax.jit(function, compiler_options=defaults | options)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        return compile_once()(*args, **kwargs)

    return call


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yield the equations of a traced program and of the programs within it."""
    for equation in jaxpr.eqns:
        yield equation
        yield from inner_equations(equation)


def inner_equations(equation: JaxprEqn) -> Iterator[JaxprEqn]:
    """Yield the equations of the programs within an equation, such as the body of a loop."""
    for jaxpr in jaxprs_in_params(equation.params):
        yield from equations(jaxpr)


def has_single_precision(jaxpr: Jaxpr) -> bool:
    """True if some intermediate result of a traced program has 32 bits or less."""
    return any(
        getattr(variable.aval, "dtype", None) in (np.float32, jnp.bfloat16, np.float16)
        for equation in equations(jaxpr)
        for variable in equation.outvars
    )


DRAWS = ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")
"""Primitives that draw random numbers."""


def draws_of(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """Return the equations of a traced program that draw random numbers."""
    return [equation for equation in equations(jaxpr) if equation.primitive.name in DRAWS]


def program_text(traced: ClosedJaxpr) -> str:
    """Return a traced program as text, with its constants and without memory addresses."""
    constants = [x for x in traced.consts if hasattr(x, "dtype")]
    arrays = [x for x in constants if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)]
    values = " ".join(str(np.asarray(x).tobytes()) for x in arrays)
    return f"{re.sub(r'0x[0-9a-f]+', '', str(traced.jaxpr))}\n{values}"
