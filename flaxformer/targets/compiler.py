"""The compiler of a target: the compiled program and its text, or the bytes that it says it needs."""

from pathlib import Path
from typing import NamedTuple

import jax

from flaxformer.system.errors import UserError
from flaxformer.training.compiling import CompilerOptions, compiler_options


class NotCompiled(NamedTuple):
    """A program of which nothing is known, since the compiler failed or ended its process.

    Args:
      reason: how it ended, with the last line that it wrote.
    """

    reason: str


def compile_lowered(lowered: jax.stages.Lowered, folder: str, target: str) -> tuple[jax.stages.Compiled | None, str]:
    """Return the compiled program, whose text is written to a folder, or None and the message that memory ran out.

    Raises:
      UserError: the program calls Python, and the target's compiler cannot compile that without the device.
    """
    try:
        options: CompilerOptions = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        return lowered.compile(compiler_options=options | compiler_options(False)), ""
    except TypeError as error:
        if "host_callbacks" not in str(error):
            raise
        raise UserError(
            "the training step calls Python (jax.debug.print, pure_callback or io_callback), which cannot be compiled "
            f"for {target} without the device; expected a step without such calls"
        ) from None
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None, str(error).partition("\n")[0]


def optimized_text(folder: Path) -> str:
    """Return the text of a compiled program, which `as_text` does not give for some programs of TPUs."""
    files = [*folder.glob("*after_optimizations.txt")]
    return max(files, key=lambda file: file.stat().st_size).read_text() if files else ""
