"""Options that are wrong by themselves or beside others, refused before JAX is imported."""

from flaxformer.cli.arguments.studies import LauncherArguments
from flaxformer.runner.launchers.options import Options
from flaxformer.runner.launchers.share import Share
from flaxformer.study.seeds import parse_seeds
from flaxformer.system.errors import UserError

LEAST = {"devices": 1, "group_size": 1, "chunk_steps": 1}
"""Smallest value of options that are numbers."""
NEEDS = {
    ("plan", "quick"): "target",
    ("train", "remat"): "plan",
}
"""Option of a command without which another one has no effect."""


def check_options(name: str, command: object) -> None:
    """Check the options of a command as far as their values tell.

    Args:
      name: name of the command.
      command: its arguments.

    Raises:
      UserError: an option has a value that is never valid, or has no effect without another option.
    """
    for option, least in LEAST.items():
        value = getattr(command, option, None)
        if value is not None and value < least:
            raise UserError(f"{option} is {value}; expected at least {least}")
    for (owner, option), needed in NEEDS.items():
        if name == owner and getattr(command, option) and not getattr(command, needed):
            raise UserError(f"--{option} is given without --{needed}, and has no effect; expected both or neither")
    seeds, share = getattr(command, "seeds", None), getattr(command, "share", None)
    if seeds is not None:
        parse_seeds(seeds)
    if share is not None:
        Share.parse(share)
    if isinstance(command, LauncherArguments):
        Options(command.workers, command.slurm, command.ray).check(command.launcher)
