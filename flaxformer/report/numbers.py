"""Format of numbers: as many digits as their uncertainty bears, over any magnitude."""

import math
import re
from collections.abc import Sequence

SIGNIFICANT = 4
"""Digits of a number whose uncertainty is not known."""
MOST = 7
"""Digits that float32 has."""
PLAIN = (1e-3, 1e6)
"""Sizes that are written without a power of ten."""


def numbers(values: Sequence[float | None], uncertainty: float = math.nan, sign: str = "") -> list[str]:
    """Numbers that share an uncertainty, such as a mean and the ends of its interval, with equal decimals.

    Args:
      values: what to print; None and NaN become "–".
      uncertainty: the uncertainty, of which two digits are shown; without one, SIGNIFICANT digits are.
      sign: "+" to mark positive numbers too.
    """
    sizes = [abs(value) for value in (*values, uncertainty) if value is not None and math.isfinite(value)]
    size = max(sizes, default=0.0)
    if not (math.isfinite(uncertainty) and uncertainty > 0) or size == 0:
        return [_brief(value, SIGNIFICANT, sign) for value in values]
    power = 0 if PLAIN[0] <= size < PLAIN[1] else _exponent(size)
    places = max(0, min(1 - _exponent(uncertainty), MOST - 1 - _exponent(size)) + power)
    return [_fixed(value, places, power, sign) for value in values]


def number(value: float | None, uncertainty: float = math.nan, sign: str = "") -> str:
    """One number; see `numbers`."""
    return numbers([value], uncertainty, sign)[0]


def exact(value: float, sign: str = "") -> str:
    """A number without uncertainty: whole ones in full, others with six digits."""
    return _brief(value, 6, sign)


def claimed(value: float) -> str:
    """A number that an author wrote."""
    return _brief(value, 6, "")


def p_value(p: float) -> str:
    """A p-value that never says 0."""
    return "–" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def duration(seconds: float) -> str:
    """A time span such as "0.4 s", "12 s", "3 min 05 s" or "2 h 07 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _exponent(size: float) -> int:
    return math.floor(math.log10(size))


def _fixed(value: float | None, places: int, power: int, sign: str) -> str:
    if value is None or not math.isfinite(value):
        return _special(value, sign)
    scaled = round(value / 10.0**power, places) + 0.0  # + 0.0: no minus before a zero
    text = f"{scaled:{sign if scaled else ''},.{places}f}"
    return text if power == 0 or not scaled else f"{text}e{power}"


def _brief(value: float | None, digits: int, sign: str) -> str:
    """The shortest decimal with so many digits; a whole number in full."""
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
