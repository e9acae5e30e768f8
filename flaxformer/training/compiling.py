"""Compiler options of a program that runs once, which takes longer to compile than to run."""

import jax

ONCE_ON_CPU: dict[str, str | bool] = {"xla_backend_optimization_level": "1", "xla_cpu_use_fusion_emitters": False}
"""Options of XLA on a CPU that compile in half the time. Results have the same bits; the program may be slower."""


def compile_once(lowered: jax.stages.Lowered, platform: str) -> jax.stages.Compiled:
    """Compile a program that will run once on a platform, quickly on a CPU; without options that XLA does not know."""
    if platform != "cpu":
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=ONCE_ON_CPU)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return lowered.compile()
