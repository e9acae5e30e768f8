"""Calls of a user's functions: any exception, and any result of another form, becomes one message."""

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping

from flaxformer.errors import UserError
from flaxformer.wording import check_text, printable


@contextlib.contextmanager
def calling(name: str, function: Callable[..., object], where: str) -> Iterator[None]:
    """Within, an exception of a user's function becomes one message with its file, line and function.

    Args:
      name: what the function is called in the declaration, such as "derive".
      function: the function.
      where: the call, such as "at seed 3".

    Raises:
      UserError: the function raised an exception.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        own = inspect.getsourcefile(inspect.unwrap(function)) if inspect.isfunction(function) else None
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((one for one in reversed(frames) if one.filename == own), None)
        place = f"{own}, line {frame.lineno}, in {frame.name}: " if frame else ""
        raise UserError(
            f"{name} failed {where}: {place}{type(error).__name__}: {printable(str(error))}; finished results are "
            "kept: mend the function, and run again"
        ) from error


def numbers(name: str, values: object, where: str) -> dict[str, float]:
    """Return the numbers that a user's function gave, by name.

    Raises:
      UserError: it is no mapping of texts to numbers; the message says which entry is none.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{name} returns {_shown(values)} {where}; expected a dict of numbers by name")
    found = {}
    for key, value in values.items():
        check_text(f"a name that {name} returns", key)
        try:
            found[key] = float(value)
        except (TypeError, ValueError):
            raise UserError(f"{name} returns '{key}' = {_shown(value)} {where}; expected a number") from None
    return found


def _shown(value: object) -> str:
    text = printable(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
