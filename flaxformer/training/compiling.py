"""Options of the compiler for the programs of a training."""

import functools

import jax

from flaxformer.nn.formulations import Formulation, with_formulations

CompilerOptions = dict[str, str | bool]

ONCE_ON_CPU: CompilerOptions = {"xla_backend_optimization_level": "1", "xla_cpu_use_fusion_emitters": False}
"""Options of XLA on a CPU that compile in half the time. Results have the same bits; the program may be slower."""

ON_GPU: CompilerOptions = {"xla_gpu_dot_merger_threshold_mb": "1"}
"""Options of XLA on a GPU. Products above 1 MB with one operand in common, such as those for queries, keys and values,
are not merged: to copy their parts out of the merged result takes longer than the merged product saves. Without smaller
ones merged, XLA fails to compile some programs for a GPU that is not attached."""


@with_formulations(
    "compilation",
    {
        "products apart": Formulation(
            lambda runs_once: dict(ON_GPU),
            gain="copies no parts of merged products: 1.02 × tokens/s of GPT-2 on an H200 (bench formulations)",
            platforms=("gpu",),
        ),
        "fast": Formulation(
            lambda runs_once: dict(ONCE_ON_CPU),
            gain="half of the time of compilation",
            platforms=("cpu",),
            unsupported_reason=lambda runs_once: None if runs_once else "the program runs more than once",
        ),
    },
)
def compiler_options(runs_once: bool) -> CompilerOptions:
    """Return the compiler's options for a program; one that runs once may take longer to compile than to run."""
    return {}


def compile_lowered(lowered: jax.stages.Lowered, runs_once: bool = False) -> jax.stages.Compiled:
    """Compile a program with those of its `compiler_options` that this version of XLA knows."""
    return lowered.compile(compiler_options=known_options(compiler_options(runs_once)))


def known_options(options: CompilerOptions) -> CompilerOptions:
    """Return those of the options that this version of XLA knows; it refuses any other."""
    return {name: value for name, value in options.items() if _is_known(name, value)}


@functools.cache
def _is_known(name: str, value: str | bool) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError as error:
        if f"No such compile option: '{name}'" in str(error):
            return False
        raise
    return True
