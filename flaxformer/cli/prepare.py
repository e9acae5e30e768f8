"""The command `flaxformer prepare SOURCE OUTPUT`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from flaxformer.cli.options import option
from flaxformer.data import prepare


@dataclasses.dataclass(frozen=True)
class Prepare:
    """Read a text, or the lines of two that translate each other, into a folder of tokens to train on."""

    source: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="SOURCE", help="a text, .jsonl or .parquet file, a folder of them, or hf:OWNER/NAME"),
    ]
    output: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUTPUT", help="the folder to write")]
    target: Annotated[str | None, option("FILE", "none", "its line i translates line i of the source")] = None
    tokenizer: Annotated[
        str, option("KIND", "bytes", "bytes, characters, bpe (trained here), or the path of a tokenizer.json")
    ] = "bytes"
    vocabulary: Annotated[int | None, option("N", "none", "how many tokens bpe is to have")] = None
    validation_tenths: Annotated[int, option("N", "1", "tenths of the data to hold out")] = 1
    end: Annotated[bool, tyro.conf.arg(help="a token after each document says that it ends")] = False
    field: Annotated[str, option("NAME", "text", "the field or column with the text, where rows have several")] = "text"
    pattern: Annotated[str, option("GLOB", "**/*.txt", "which files of a folder")] = "**/*.txt"
    subset: Annotated[str | None, option("NAME", "none", "of a data set of the hub")] = None
    split: Annotated[str, option("NAME", "train", "of a data set of the hub")] = "train"

    def __call__(self, console: Console) -> int:
        about = prepare(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
        console.print(counts_table(about))
        task = "PairedTokens" if about["pairs"] else "TokenFiles"
        vocabulary = f"vocabulary of {about['vocabulary']:,} tokens ({self.tokenizer})"
        console.print(f"{vocabulary}; data in {self.output}", **AS_IT_IS)
        console.print(f'task={task}(path="{self.output}")', **AS_IT_IS)
        return 0


AS_IT_IS: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False, "soft_wrap": True}


def counts_table(about: dict[str, Any]) -> Table:
    """Tokens, and documents or pairs, of each side."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for header in ("tokens", "pairs" if about["pairs"] else "documents"):
        table.add_column(header, justify="right")
    for side, tokens in about["tokens"].items():
        documents = about["documents"][side] // (2 if about["pairs"] else 1)
        table.add_row(side, f"{tokens:,}", f"{documents:,}")
    return table
