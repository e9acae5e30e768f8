"""The blocks of code in the pages of the documentation and in the README, in the order of the site's navigation.

A block of Python with a title is a file of that name; other Python of a page runs in one namespace, from top to bottom.
The lines of a bash block are commands. `<!-- not run: REASON -->` before a block leaves it out.
"""

import dataclasses
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r'```(?P<language>[^\n]*?)(?: title="(?P<title>[^"\n]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    title: str | None
    reason: str | None

    @property
    def commands(self) -> list[list[str]]:
        """The words of every command of a block of bash."""
        lines = [shlex.split(line, comments=True) for line in self.text.splitlines()]
        return [line for line in lines if line]


def pages() -> dict[str, Path]:
    """Every page by name, as the navigation orders them; the README last."""
    listed = re.findall(r"^\s+- .*: (\w+)\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    return {name: path for name in listed if (path := ROOT / "docs" / f"{name}.md").exists()} | {
        "README": ROOT / "README.md"
    }


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    return [
        Block(found["language"], found["text"], found["title"], found["reason"])
        for found in BLOCK.finditer(page.read_text())
    ]
