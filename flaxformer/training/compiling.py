"""Options of the compiler for the programs of a training."""

import jax

CompilerOptions = dict[str, str | bool]

ONCE_ON_CPU: CompilerOptions = {"xla_backend_optimization_level": "1", "xla_cpu_use_fusion_emitters": False}
"""Options of XLA on a CPU that compile in half the time. Results have the same bits; the program may be slower."""

ON_GPU: CompilerOptions = {"xla_gpu_dot_merger_threshold_mb": "1"}
"""Options of XLA on a GPU. Products above 1 MB with one operand in common, such as those for queries, keys and values,
are not merged: to copy their parts out of the merged result takes longer than the merged product saves. Without smaller
ones merged, XLA fails to compile some programs for a GPU that is not attached."""


def options_for(platform: str, runs_once: bool = False) -> CompilerOptions:
    """Return the options for a platform, and on a CPU those of a program that takes longer to compile than to run."""
    if platform == "gpu":
        return dict(ON_GPU)
    return dict(ONCE_ON_CPU) if platform == "cpu" and runs_once else {}


def compile_for(lowered: jax.stages.Lowered, platform: str, runs_once: bool = False) -> jax.stages.Compiled:
    """Compile a program for a platform, with `options_for` it that this version of XLA knows."""
    options = options_for(platform, runs_once)
    while True:
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            unknown = [name for name in options if f"No such compile option: '{name}'" in str(error)]
            if not unknown:
                raise
            del options[unknown[0]]
