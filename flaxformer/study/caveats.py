"""Caveats of a study: limits that may name fields of the baseline, and then state their values as they are run."""

import re
from collections.abc import Sequence

from flaxformer.core.paths import get_at
from flaxformer.core.struct import Config
from flaxformer.training import Run

FIELD = re.compile(r"\{(\w+(?:\.\w+)+)\}")
"""A field that a caveat names, by its path."""


def caveats_of(texts: Sequence[str], baseline: Run) -> tuple[str, ...]:
    """Return caveats with the baseline's values in place of the fields that they name.

    >>> caveats_of(["One width, {model.d_model}, and {training.steps} steps."], baseline)
    ('One width, 64, and 1,000 steps.',)

    A command that overrides a field changes its value here too, so that a caveat is never about another run.

    Raises:
      UserError: a caveat names a path that is none of a field; the message has the nearest.
    """
    return tuple(FIELD.sub(lambda match: _in_words(get_at(baseline, match[1])), text) for text in texts)


def mark_overridden(texts: Sequence[str], overrides: Sequence[str]) -> tuple[str, ...]:
    """Return caveats, each with the fields that it names and a command overrides, such as "training.steps=40".

    >>> mark_overridden(["One width, {training.steps} steps."], ["training.steps=40"])
    ('One width, {training.steps} steps. (Overridden: training.steps=40.)',)
    """
    marked = []
    for text in texts:
        changed = [override for override in overrides if _is_named(override.partition("=")[0], text)]
        marked.append(f"{text} (Overridden: {', '.join(changed)}.)" if changed else text)
    return tuple(marked)


def _is_named(path: str, text: str) -> bool:
    """True if a caveat names a field, a part of it, or what it is a part of."""
    return any(f"{path}.".startswith(f"{named}.") or named.startswith(f"{path}.") for named in FIELD.findall(text))


def _in_words(value: object) -> str:
    match value:
        case bool() | None:
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
        case Config():
            return type(value).__name__
    return str(value)
