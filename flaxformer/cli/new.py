"""The command `flaxformer new study|run|component|task|ledger|agent NAME`."""

import keyword
import re
from importlib import resources
from pathlib import Path

from rich.console import Console

from flaxformer.cli.arguments import New
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.python_files import declares, find_experiment

COMPONENTS = ("feed_forward", "attention", "mixer", "norm")
"""Kinds of components that have a template, the default first."""


def main(arguments: New, console: Console) -> int:
    """Write the template under the name."""
    stem = arguments.name.removesuffix(".py")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", stem) or keyword.iskeyword(stem):
        raise UserError(f"name is '{arguments.name}'; expected lower-case letters, digits and '_', such as my_study")
    path = Path(f"{stem}_agent.md" if arguments.template == "agent" else f"{stem}.py")
    if arguments.kind is not None and arguments.template != "component":
        raise UserError(f"--kind is {arguments.kind} with 'new {arguments.template}'; expected 'new component NAME'")
    if arguments.kind not in (None, *COMPONENTS):
        raise UserError(f"--kind is '{arguments.kind}'{did_you_mean(str(arguments.kind), COMPONENTS)}")
    template = arguments.kind or COMPONENTS[0] if arguments.template == "component" else arguments.template
    text = _copy(template, arguments.like, stem) if arguments.like else _template(template, stem)
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists already; expected another name") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    lines = _next_commands(template, f"{stem}.py")
    width = max(map(len, lines))
    console.print(f"Wrote {path}.", soft_wrap=True)
    for words, meaning in lines.items():
        console.print(f"flaxformer {words:{width}}   {meaning}", soft_wrap=True)
    return 0


def _next_commands(template: str, file: str) -> dict[str, str]:
    """Commands that follow, with what each does."""
    if template in ("ledger", "agent"):
        return {
            f"noise {file}": "shows how small an effect the seeds can show",
            f'improve {file} PATH=VALUE --reason "..."': "tries a change of the recipe",
        }
    command = "train" if template == "run" else "run"
    plan = f"{command} {file} --plan" if template == "run" else f"plan {file}"
    return {f"check {file}": "checks its model", plan: "shows its cost", f"{command} {file}": "trains it"}


def _template(template: str, stem: str) -> str:
    """Text of a template of the package, with its new name."""
    ending = "md" if template == "agent" else "py"
    text = resources.files("flaxformer.cli.templates").joinpath(f"{template}.{ending}").read_text()
    return text.replace("NAME", stem).replace("KIND", "".join(word.capitalize() for word in stem.split("_")))


def _copy(template: str, like: Path, stem: str) -> str:
    """Text of a study, with its new name.

    Raises:
      UserError: the file cannot be read, or declares no study.
    """
    file = find_experiment(like)
    if template != "study" or not declares(file, "study"):
        raise UserError(f"--like is '{like}'; expected a Python file that defines `study`, with 'new study'")
    text = re.sub(rf"[\w/]*\b{re.escape(file.name)}", f"{stem}.py", file.read_text())
    return re.sub(rf"""\bname=(["']){re.escape(file.stem)}\1""", f'name="{stem}"', text)
