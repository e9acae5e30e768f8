"""Numbers as text, with the digits that their uncertainty supports, at any magnitude."""

import math
import re
from collections.abc import Sequence

SIGNIFICANT = 4
"""Significant digits of a number of unknown uncertainty."""
MOST = 7
"""Significant digits of float32."""
PLAIN = (1e-3, 1e6)
"""Smallest and largest size of numbers that are written without a power of ten."""


def numbers(values: Sequence[float | None], uncertainty: float = math.nan, sign: str = "") -> list[str]:
    """Format numbers with a common uncertainty, such as a mean and the ends of its interval, with equal decimals.

    Args:
      values: the numbers; None and NaN become "–".
      uncertainty: common uncertainty, of which two digits are shown; if it is NaN, SIGNIFICANT digits are shown.
      sign: "+" to show the sign of positive numbers.
    """
    sizes = [abs(value) for value in (*values, uncertainty) if value is not None and math.isfinite(value)]
    size = max(sizes, default=0.0)
    if not (math.isfinite(uncertainty) and uncertainty > 0) or size == 0:
        return [_brief(value, SIGNIFICANT, sign) for value in values]
    power = 0 if PLAIN[0] <= size < PLAIN[1] else _exponent(size)
    places = max(0, min(1 - _exponent(uncertainty), MOST - 1 - _exponent(size)) + power)
    return [_format(value, places, power, sign) for value in values]


def number(value: float | None, uncertainty: float = math.nan, sign: str = "") -> str:
    """Format one number; see `numbers`."""
    return numbers([value], uncertainty, sign)[0]


def exact(value: float, sign: str = "") -> str:
    """A number without uncertainty: an integer in full, another number with six significant digits."""
    return _brief(value, 6, sign)


def round_digits(value: float, digits: int = 3) -> str:
    """A number with so many significant digits."""
    return _brief(value, digits, "")


def p_value(p: float) -> str:
    """Format a p-value; a small one as "< 0.0001"."""
    return "–" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def _exponent(size: float) -> int:
    return math.floor(math.log10(size))


def _format(value: float | None, places: int, power: int, sign: str) -> str:
    if value is None or not math.isfinite(value):
        return _special(value, sign)
    scaled = round(value / 10.0**power, places) + 0.0  # + 0.0: no minus before a zero
    text = f"{scaled:{sign if scaled else ''},.{places}f}"
    return text if power == 0 or not scaled else f"{text}e{power}"


def _brief(value: float | None, digits: int, sign: str) -> str:
    """Return the shortest decimal with so many digits; an integer in full."""
    if value is None or not math.isfinite(value):
        return _special(value, sign)
    sign = sign if value else ""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):{sign},}"
    if PLAIN[0] <= abs(value) < PLAIN[1]:
        text = f"{value:{sign},.{max(0, digits - 1 - _exponent(abs(value)))}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return re.sub(r"e([+-])0*(\d+)", lambda m: "e" + m[1].strip("+") + m[2], f"{value:{sign}.{digits}g}")


def _special(value: float | None, sign: str) -> str:
    if value is None or math.isnan(value):
        return "–"
    return "-∞" if value < 0 else f"{sign}∞"
