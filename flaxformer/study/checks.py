"""Checks of what a study or probe declares besides its runs: names, texts and functions."""

import re
from collections.abc import Sequence

from flaxformer.errors import UserError
from flaxformer.wording import check_text


def check_name(name: str) -> None:
    """Raise UserError if a name is not valid for a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise UserError(f"study name is '{name}'; expected letters, digits, '_', '-' and '.' (it names a folder)")


def check_texts(question: object, caveats: Sequence[object], unit: object) -> None:
    """Raise UserError if a text of a study or probe cannot be shown."""
    check_text("question", question)
    check_text("unit", unit)
    for number, caveat in enumerate(caveats):
        check_text(f"caveats[{number}]", caveat)


def check_functions(**functions: object) -> None:
    """Raise UserError if one of them is given and cannot be called."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise UserError(f"{name} is {function!r}; expected a function")
