"""The command `flaxformer prepare SOURCE OUTPUT`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from flaxformer.cli.arguments import Prepare
from flaxformer.data import prepare
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.system.objects import url_of


def main(arguments: Prepare, console: Console) -> int:
    """Write the folder, and print its counts and the task that reads it."""
    about = prepare(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(arguments)})
    console.print(fit_width(counts_table(about), console.width))
    task = "PairedTokens" if about["pairs"] else "TokenFiles"
    vocabulary = f"vocabulary of {about['vocabulary']:,} tokens ({arguments.tokenizer})"
    output = url_of(arguments.output) or arguments.output
    for line in (f"{vocabulary}; data in {output}", f'task={task}(path="{output}")'):
        console.print(Text(line), soft_wrap=True)
    return 0


def counts_table(about: Mapping[str, Any]) -> Table:
    """Tokens, and documents or pairs, of the training and the validation data."""
    counts = {side: n // (2 if about["pairs"] else 1) for side, n in about["documents"].items()}
    rows = [[side, f"{tokens:,}", f"{counts[side]:,}"] for side, tokens in about["tokens"].items()]
    return Table("", ["data", "tokens", "pairs" if about["pairs"] else "documents"], rows, 1)
