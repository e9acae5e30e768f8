"""Checks of what a study or probe declares besides its runs: names and texts."""

import re
from collections.abc import Sequence

from flaxformer.system.errors import UserError, quote
from flaxformer.system.wording import check_text

LONGEST = 200
"""Largest length of a name; file systems allow 255, and files beside the folder have longer names."""


def check_name(name: str) -> None:
    """Raise UserError if a name is not valid for a folder, or too long for one on a usual file system."""
    if len(name) > LONGEST:
        raise UserError(f"study name is {quote(name)}; expected at most {LONGEST} characters (it names a folder)")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise UserError(f"study name is '{name}'; expected letters, digits, '_', '-' and '.' (it names a folder)")


def check_texts(question: object, caveats: Sequence[object], unit: object) -> None:
    """Raise UserError if a text of a study or probe cannot be shown."""
    check_text("question", question)
    check_text("unit", unit)
    for number, caveat in enumerate(caveats):
        check_text(f"caveats[{number}]", caveat)
