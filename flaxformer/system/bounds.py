"""Bounds of numbers: those of a config's field, and those of an option of a command."""

from collections.abc import Callable, Mapping

from flaxformer.system.errors import UserError, quote

BOUNDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "at_least": (lambda value, bound: value >= bound, "at least"),
    "above": (lambda value, bound: value > bound, "above"),
    "at_most": (lambda value, bound: value <= bound, "at most"),
    "below": (lambda value, bound: value < bound, "below"),
}


def check_number(where: str, value: float, bounds: Mapping[str, float]) -> None:
    """Check a number; `bounds` has limits by the names of `BOUNDS`.

    Raises:
      UserError: the number is beyond one of them, or not a number.
    """
    for name, bound in bounds.items():
        holds, words = BOUNDS[name]
        if not holds(value, bound):
            raise UserError(f"{where} is {quote(value)}; expected a number {words} {bound}")
