"""The line of a user's code that an exception passed through."""

import traceback

from flaxformer.system.user_code.source import is_user_file


def place_of(error: BaseException) -> str:
    """Return "FILE, line N, in FUNCTION" for the innermost frame of user code in a traceback; "" if there is none."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    innermost = next((frame for frame in frames if is_user_file(frame.filename)), None)
    return "" if innermost is None else f"{innermost.filename}, line {innermost.lineno}, in {innermost.name}"


def describe(error: BaseException) -> str:
    """Return an exception in one line, after its place in the user's code if it has one."""
    first, *_ = str(error).splitlines() or [""]
    return ": ".join(filter(None, [place_of(error), type(error).__name__, first]))
