"""Forms of the lines in a study's folder, by the name of their file: a line of another file has another form."""

from pathlib import Path

from flaxformer.store.schema import NUMBER, Form, check_form
from flaxformer.system import digests
from flaxformer.system.digests import FormError, JsonObject

DISAGREEMENTS = "disagreements.jsonl"
LAUNCHES = "launches.jsonl"
MEASUREMENTS = "measurements.jsonl"
SUGGESTIONS = "suggestions.jsonl"
TRIAL_MEASUREMENTS = "trial_measurements.jsonl"
LINES: dict[str, dict[str, Form]] = {
    DISAGREEMENTS: {"": {"trial": str, "what": str}},
    LAUNCHES: {"": {"launched": str, "file?": (str, None), "command?": (str, None), "code?": (str, None)}},
    MEASUREMENTS: {"": {"measured_by": str, "seed": int, "declaration?": (str, None), "values": dict}},
    SUGGESTIONS: {"": {"round": int, "paths": [str], "points": [[str]]}},
    TRIAL_MEASUREMENTS: {
        "launch": {
            "function": str,
            "measured_by": str,
            "code": {"*": str},
            "step": (int, None),
            "time": str,
        },
        "trial": {
            "function": str,
            "measured_by": str,
            "step": (int, None),
            "trial": str,
            "fingerprint": str,
            "weights": str,
            "at": int,
            "seconds": NUMBER,
            "values": dict,
        },
    },
}
"""Forms of a file's lines by their field "kind"; "" for a file whose lines have none."""


def read_checked(path: Path) -> tuple[list[JsonObject], list[str]]:
    """Return the lines of a file that have the form of its name in `LINES`, and what is wrong with the others."""
    rows, wrong = digests.lines(path)
    if path.name not in LINES:
        return rows, wrong
    checked = []
    for row in rows:
        try:
            check_line(path.name, row)
        except FormError as error:
            wrong.append(f"a line is not of {path.name}: {error}")
        else:
            checked.append(row)
    return checked, wrong


def check_line(name: str, row: JsonObject) -> None:
    """Check the types in a line of the file of this name.

    Raises:
      FormError: the field, its value, and what was expected.
    """
    forms = LINES[name]
    kind = "" if "" in forms else row.get("kind")
    if kind not in list(forms):
        raise FormError(f"kind is {kind!r}; expected {' or '.join(forms)}")
    form = forms[str(kind)]
    check_form("", row, form)
    for column, value in row["values"].items() if isinstance(row.get("values"), dict) else ():
        if not isinstance(value, int | float) or isinstance(value, bool):  # one that is not finite is a result
            raise FormError(f"values.{column} is {str(value)[:60]!r}; expected a number")
