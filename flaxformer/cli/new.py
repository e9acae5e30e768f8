"""The command `flaxformer new KIND NAME`."""

import keyword
import re
from importlib import resources
from pathlib import Path

from rich.console import Console

from flaxformer.cli.arguments import New
from flaxformer.system.errors import UserError
from flaxformer.system.python_files import declares, find_experiment


def main(arguments: New, console: Console) -> int:
    """Write the template under the name."""
    stem = arguments.name.removesuffix(".py")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", stem) or keyword.iskeyword(stem):
        raise UserError(f"name is '{arguments.name}'; expected lower-case letters, digits and '_', such as my_study")
    path = Path(f"{stem}.py")
    text = _copy(arguments.kind, arguments.like, stem) if arguments.like else _template(arguments.kind, stem)
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists already; expected another name") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    for line in (
        f"Wrote {path}.",
        f"flaxformer check {path}   checks its model",
        f"flaxformer run {path}     trains it",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    return 0


def _template(kind: str, stem: str) -> str:
    """Text of the package's example of this kind, with its new name."""
    text = resources.files("flaxformer").joinpath("templates", f"{kind}.py").read_text()
    return text.replace("NAME", stem).replace("KIND", "".join(word.capitalize() for word in stem.split("_")))


def _copy(kind: str, like: Path, stem: str) -> str:
    """Text of a study, with its new name.

    Raises:
      UserError: the file cannot be read, or declares no study.
    """
    file = find_experiment(like)
    if kind != "study" or not declares(file, "study"):
        raise UserError(f"--like is '{like}'; expected a Python file that defines `study`, with 'new study'")
    text = re.sub(rf"[\w/]*\b{re.escape(file.name)}", f"{stem}.py", file.read_text())
    return re.sub(rf"""\bname=(["']){re.escape(file.stem)}\1""", f'name="{stem}"', text)
