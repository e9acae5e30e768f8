"""What can be wrong with a checkpoint, in words."""

from flaxformer.struct import UserError


class Damaged(Exception):  # noqa: N818
    """What is wrong with a step on disk."""


class SaveFailed(UserError):  # noqa: N818
    """Steps that could not be saved, and why; those saved earlier are still there."""


def line(error: BaseException) -> str:
    """The first line of what an error says, or what it is."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
