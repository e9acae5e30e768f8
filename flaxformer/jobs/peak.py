"""Model FLOPs utilization (MFU): the FLOPs of a run's model, divided by the peak that the device's vendor publishes.

MFU = FLOPs of the model per second / peak (Chowdhery et al. 2022, appendix B). Only the model counts: neither what is
recomputed to save memory, nor the optimizer.
"""

import math
from collections.abc import Iterable

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from flaxformer.training import Run, start
from flaxformer.training.step import forward

PEAKS: tuple[tuple[str, float | None, float], ...] = (
    ("H100 PCIe", 756.5, 378.0),
    ("H100 NVL", 835.5, 417.5),
    ("H100", 989.5, 494.5),
    ("H200 NVL", 835.5, 417.5),
    ("H200", 989.5, 494.5),
    ("A100", 312.0, 156.0),
    ("L40S", 362.0, 183.0),
    ("L4", 121.0, 60.0),
    ("V100-PCIE", None, 14.0),
    ("V100", None, 15.7),
    ("TPU v2", 23.0, 23.0),
    ("TPU v3", 61.5, 61.5),
    ("TPU v4", 275.0, 275.0),
    ("TPU v5 lite", 197.0, 197.0),
    ("TPU v5", 459.0, 459.0),
    ("TPU v6 lite", 918.0, 918.0),
)
"""Part of a device kind's name, and its dense peak in TFLOP/s for products in bfloat16 and in float32.

The first match counts. Products of float32 arrays are those of XLA's default precision: TF32 on NVIDIA's tensor cores
since Ampere, one pass in bfloat16 on a TPU. V100 has tensor cores for float16 alone. A device of TPU v2 and v3
is one of a chip's two cores.

Sources: NVIDIA's data sheets of H100, H200, A100, L40S, L4 and V100, the numbers with sparsity halved;
docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e; for v2 and v3, 46 and 123 per chip, Jouppi et al. 2020, "A
domain-specific supercomputer for training deep neural networks".
"""


def peak(kind: str, precision: str) -> float | None:
    """FLOP/s of a device of this kind at a run's precision; None where none is published, as for a CPU.

    That of a CPU is not measured instead, since it varies with the clock and with other users of its cores.
    """
    for part, bfloat16, float32 in PEAKS:
        if part in kind:
            found = bfloat16 if precision == "bfloat16" else float32
            return None if found is None else found * 1e12
    return None


def model_flops(run: Run) -> int:
    """FLOPs of one training step: 3 × those of the products of the forward pass, as the backward pass has two for each.

    Counted in the traced program, for every architecture. A decoder-only model of L layers has 6 N + 12 L d T per token
    for N weights in products; attention counts over all T, masked or not.
    """
    key = jax.random.key(0)
    batch = run.task.load().batch(key, 0)
    params = jax.eval_shape(start, run).params
    parts = batch if isinstance(batch, tuple) else (batch,)
    return 3 * sum(products_of(jax.make_jaxpr(forward)(params, run, part).jaxpr) for part in parts)


def products_of(jaxpr: Jaxpr) -> int:
    """FLOPs of matrix products and convolutions in a program; a loop counts as often as it runs, if that is known."""
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (over, _), _ = params["dimension_numbers"]
            summed = math.prod(_shape(equation.invars[0])[axis] for axis in over)
            total += 2 * math.prod(_shape(equation.outvars[0])) * summed
        elif name == "conv_general_dilated":
            kernel, outputs = _shape(equation.invars[1]), params["dimension_numbers"].rhs_spec[0]
            total += 2 * math.prod(_shape(equation.outvars[0])) * math.prod(kernel) // kernel[outputs]
        else:
            total += params.get("length", 1) * sum(map(products_of, _inner(params.values())))
    return total


def _shape(variable: Var | Literal) -> tuple[int, ...]:
    """The shape of an equation's input or output."""
    assert isinstance(variable.aval, jax.core.ShapedArray)
    return tuple(variable.aval.shape)


def _inner(values: Iterable[object]) -> Iterable[Jaxpr]:
    """The programs within an equation's parameters."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _inner(value)
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, ClosedJaxpr):
            yield value.jaxpr
