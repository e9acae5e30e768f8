"""Counts, lists and durations as text, and checks of the texts that users give."""

import math
import unicodedata
from collections.abc import Iterable, Sequence

from flaxformer.system.errors import UserError


def count_of(number: int, noun: str) -> str:
    """A number with its noun, such as "1 run" or "1,024 runs"."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a noun that forms it with -s, -es or -ies; of "analysis", "analyses"."""
    if noun.endswith("analysis"):
        return f"{noun[:-2]}es"
    if noun.endswith(("s", "sh", "ch", "x")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"


def join_words(words: Iterable[str]) -> str:
    """Words as a list, such as "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def first_of(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first of some texts, and how many there are besides, such as "a, b and 3 more"."""
    left = len(texts) - most
    before = " " if separator == ", " else separator
    return separator.join(texts[:most]) + (f"{before}and {left:,} more" if left > 0 else "")


def with_prefix(value: float, unit: str) -> str:
    """A number with three digits and a prefix of thousands, such as "854 MFLOP"."""
    prefixes = ("", "k", "M", "G", "T", "P", "E", "Z")
    power = min(max(0, math.floor(math.log10(max(value, 1)) / 3)), len(prefixes) - 1)
    if float(f"{value / 1000**power:.3g}") >= 1000 and power + 1 < len(prefixes):
        power += 1
    return " ".join(f"{value / 1000**power:.3g} {prefixes[power]}{unit}".split())


def signed(value: float) -> str:
    """A number with its sign and three decimals; of one that is nearer to 0, two digits, such as "-0.00031"."""
    places = 3 if value == 0 or abs(value) >= 0.005 else min(9, 1 - math.floor(math.log10(abs(value))))
    return f"{value:+.{places}f}"


def duration(seconds: float) -> str:
    """A time span such as "0.4 s", "12 s", "3 min 05 s" or "2 h 07 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def check_text(name: str, value: object) -> None:
    """Check a text that reports will show, such as a question, a claim or a label.

    Raises:
      UserError: it is not text, or holds a character that a terminal would obey or that UTF-8 cannot encode.
    """
    if not isinstance(value, str):
        raise UserError(f"{name} is {value!r}; expected text")
    for character in value:
        if unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t":
            raise UserError(f"{name} is {value!r}, which holds {character!r}; expected printable text")


def printable(text: str) -> str:
    """The text with "·" in place of characters that a terminal or a reader's eye would obey.

    Those are control characters other than line ends and tabs, marks of the direction of writing, other characters
    without a shape, and lone surrogates.
    """
    return "\n".join(line if line.isprintable() else _printable(line) for line in text.split("\n"))


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" or unicodedata.category(c) == "Zs" else "·" for c in line)
