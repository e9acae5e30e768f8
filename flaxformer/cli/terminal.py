"""Output of the command: texts of users and of foreign folders are shown, and never obeyed by the terminal."""

import json
from collections.abc import Mapping

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.segment import Segment

from flaxformer.system.wording import printable


def safe_console(is_error: bool = False) -> Console:
    """Return a console that prints "·" for control characters in texts, and does not interpret markup in them."""
    console = Console(stderr=is_error, markup=False, highlight=False)
    console.push_render_hook(_Printable())
    return console


FORMAT = 1
"""Version of the objects that commands print, which have no other; raised when a field changes its meaning."""


def print_json(data: Mapping[str, object], *, in_line: bool = False) -> None:
    """Print an object as JSON on standard output, with its `format`, and nothing else.

    Characters that a terminal or a reader's eye would obey are escaped, as JSON allows in every text.

    Args:
      in_line: True for one line, to be read as soon as it is printed.
    """
    text = json.dumps({"format": FORMAT, **data}, ensure_ascii=False, indent=None if in_line else 1)
    escaped = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    print(escaped, flush=True)


class _Printable(RenderHook):
    """Hook of a console that replaces control characters in everything that it prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_PrintableText(renderable) for renderable in renderables]


class _PrintableText:
    """Renderable whose text is that of another, without control characters; colours and cursor movements stay."""

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
