"""Calls of a user's functions: any exception, and any result of another form, becomes one message."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from flaxformer.system.errors import UserError
from flaxformer.system.user_code.source import describe
from flaxformer.system.wording import check_text, printable


@contextlib.contextmanager
def calling(name: str, where: str) -> Iterator[None]:
    """Within, an exception of a user's function becomes one message with its file, line and function.

    Args:
      name: what the function is called in the declaration, such as "derive".
      where: the call, such as "at seed 3".

    Raises:
      UserError: the function raised an exception.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserError(
            f"{name} failed {where}: {printable(describe(error))}; finished results are kept: correct the function, "
            "and run again"
        ) from error


def numbers_of(function: Callable[..., object], arguments: Sequence[object], name: str, where: str) -> dict[str, float]:
    """Return the numbers that a user's function gives, by name.

    Args:
      function, arguments: what is called.
      name, where: see `calling`.

    Raises:
      UserError: it raised an exception, or gave something else than a mapping of texts to numbers; the message says
        which entry is not a number.
    """
    with calling(name, where):
        values = function(*arguments)
    if not isinstance(values, Mapping):
        raise UserError(f"{name} returns {_shorten(values)} {where}; expected a dict of numbers by name")
    floats = {}
    for key, value in values.items():
        check_column(name, key)
        try:
            floats[key] = float(value)
        except (TypeError, ValueError):
            raise UserError(f"{name} returns '{key}' = {_shorten(value)} {where}; expected a number") from None
    return floats


def check_column(function: str, name: object) -> None:
    """Check a name that a user's function gives to a number.

    Raises:
      UserError: it is not text, or holds characters that tables do not show, such as control characters.
    """
    check_text(f"a name that {function} returns", name)
    if not name or not str(name).isprintable():
        raise UserError(f"{function} returns the name {name!r}; expected printable text")


def _shorten(value: object) -> str:
    text = printable(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
