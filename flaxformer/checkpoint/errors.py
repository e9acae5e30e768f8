"""Errors of checkpoints."""

from flaxformer.struct import UserError


class Damaged(Exception):  # noqa: N818
    """Error of a step on disk that is damaged."""


class SaveFailed(UserError):  # noqa: N818
    """Steps that could not be saved, and why; those saved earlier are still there."""


def line(error: BaseException) -> str:
    """The first line of what an error says, or what it is."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
