"""The command `flaxformer new KIND NAME`."""

import dataclasses
import keyword
import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from flaxformer.struct import UserError


@dataclasses.dataclass(frozen=True)
class New:
    """Write a commented file to start from: a study, a component of a model, or a task."""

    kind: Annotated[
        Literal["study", "component", "task"], tyro.conf.Positional, tyro.conf.arg(metavar="study|component|task")
    ]
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help="the file's name, as in my_idea")]

    def __call__(self, console: Console) -> int:
        stem = self.name.removesuffix(".py")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", stem) or keyword.iskeyword(stem):
            raise UserError(f"name is '{self.name}'; expected lower-case letters, digits and '_', such as my_idea")
        path = Path(f"{stem}.py")
        text = resources.files("flaxformer").joinpath("templates", f"{self.kind}.py").read_text()
        kind = "".join(word.capitalize() for word in stem.split("_"))
        try:
            with path.open("x") as file:
                file.write(text.replace("NAME", stem).replace("KIND", kind))
        except FileExistsError:
            raise UserError(f"{path} is there already; expected a new name") from None
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from None
        console.print(f"{path} is written. flaxformer check {path} checks its model; flaxformer run {path} trains it.")
        return 0
