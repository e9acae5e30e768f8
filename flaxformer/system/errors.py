"""The error that a user can correct, and the suggestion that ends its message."""

import difflib
from collections.abc import Collection


class UserError(ValueError):
    """A mistake that the user can correct; the command line prints its message alone and exits with code 2."""


SHOWN = 100
"""Number of characters up to which a message quotes a value."""
FEW = 8
"""Number of names up to which a message lists them all."""


def quote(value: object) -> str:
    """Return a value as a message quotes it: its representation, shortened to `SHOWN` characters."""
    if isinstance(value, int) and abs(value) >= 10**SHOWN:
        return f"an integer of {value.bit_length()} bits"
    try:
        return shorten(repr(value))
    except Exception:  # of a class of the user
        return f"a value of the class {type(value).__name__}"


def shorten(text: str) -> str:
    """Return a text of at most `SHOWN` characters, with "…" and the number of all if some are left out."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


def did_you_mean(name: str, names: Collection[str]) -> str:
    """The end of an error message: the nearest valid name, if any, and all names, if they are few or none is near."""
    near = difflib.get_close_matches(name[:SHOWN], names, n=1, cutoff=0.5)
    listed = ", ".join(names)
    if not near:
        return f"; it has: {listed}"
    return f"; did you mean '{near[0]}'?" + (f" It has: {listed}" if 1 < len(names) <= FEW else "")


def not_supported(name: str, names: Collection[str]) -> str:
    """The end of a message about a name of another library: the names that are supported, and a near misspelling."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f", which is not supported{hint or ';'} {'S' if near else 's'}upported: {', '.join(names)}"
