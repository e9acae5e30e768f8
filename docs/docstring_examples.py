"""Griffe extension: show the lines of a docstring that begin with `>>>` as code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Put a fence around every run of `>>>` lines that is not in a section of its own."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the text of an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    lines = [line.removeprefix(">>> ").removeprefix("... ") for line in match[0].splitlines()]
    return "\n".join(["```python", *lines, "```"])
