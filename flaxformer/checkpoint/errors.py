"""Errors of checkpoints."""

from flaxformer.system.errors import UserError


class DamagedStepError(Exception):
    """A step on disk is damaged."""


class SaveError(UserError):
    """Steps could not be saved, for the reasons in the message; steps that were saved before still exist."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 300 characters; the name of its class if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
