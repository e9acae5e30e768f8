"""Compiler options of a program that runs once, which takes longer to compile than to run."""

import jax

ONCE_ON_CPU: dict[str, str | bool] = {"xla_backend_optimization_level": "1", "xla_cpu_use_fusion_emitters": False}
"""Options of XLA on a CPU that compile in half the time. Results have the same bits; the program may be slower."""


def compile_once(lowered: jax.stages.Lowered, platform: str) -> jax.stages.Compiled:
    """Compile a program that will run once on a platform, quickly on a CPU; without options that XLA does not know."""
    options = dict(ONCE_ON_CPU) if platform == "cpu" else {}
    while True:
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            unknown = [name for name in options if f"No such compile option: '{name}'" in str(error)]
            if not unknown:
                raise
            del options[unknown[0]]
