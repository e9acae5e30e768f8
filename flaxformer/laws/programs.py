"""Programs of the laws: functions compiled for a few calls, and traced programs as equations and as text."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params

FAST: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiler options for programs that run a few times: compilation is then most of the time."""


def fast_jit(function: Callable[..., Any], **options: Any) -> Any:
    """Return a function compiled by `jax.jit` for a few calls: with little optimization on a CPU.

    The first call asks for the platform, so that JAX starts then, and not when a module is imported.
    """

    @functools.cache
    def compiled() -> Any:
        own = FAST if jax.default_backend() == "cpu" else {}
        return jax.jit(function, compiler_options=own | options)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return compiled()(*arguments)

    return call


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a traced program and of the programs within it."""
    for equation in jaxpr.eqns:
        yield equation
        yield from inner_equations(equation)


def inner_equations(equation: Any) -> Iterator[Any]:
    """Yield the equations of the programs within an equation, such as the body of a loop."""
    for jaxpr in jaxprs_in_params(equation.params):
        yield from equations(jaxpr)


def program_text(traced: Any) -> str:
    """Return a traced program as text, with its constants and without addresses."""
    constants = [x for x in traced.consts if hasattr(x, "dtype")]
    numbers = [x for x in constants if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)]
    values = " ".join(str(np.asarray(x).tobytes()) for x in numbers)
    return f"{re.sub(r'0x[0-9a-f]+', '', str(traced.jaxpr))}\n{values}"
