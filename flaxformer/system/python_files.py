"""Python files of studies, jobs and benchmarks: where they are, and what they declare."""

import ast
import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flaxformer.system.errors import UserError


def find_experiment(path: Path) -> Path:
    """Return the path if it exists, or else the package's own file or folder below `experiments/`, if it has one.

    The studies, claims and benchmarks of the package are in `experiments/`, beside the package in a clone and inside it
    in an installed wheel. With this, `flaxformer run experiments/norm_and_scale.py` works in any folder.
    """
    package = Path(__file__).resolve().parents[1]
    if path.exists() or path.parts[:1] != ("experiments",):
        return path
    return next((candidate for folder in (package, package.parent) if (candidate := folder / path).exists()), path)


def check_is_python(file: Path, purpose: str) -> None:
    """Check by the name of a file that it is one of Python.

    Args:
      purpose: completes "a Python file that …" in the message.

    Raises:
      UserError: it is another file, such as one of data.
    """
    if file.suffix != ".py":
        raise UserError(
            f"'{file}' is not a Python file (.py); expected one that {purpose}: 'flaxformer new' writes it. Its task "
            f"reads data, such as task=TextLabels(path='{file}', text=…, label=…) or task=TextFiles(path='{file}')"
        )


def declares(file: Path, name: str) -> bool:
    """True if a file assigns or imports a name at its top level; nothing is executed."""
    path = find_experiment(file)
    if not path.is_file():  # a device or a pipe may have no end
        return False
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return name in assigned_names(tree)


def assigned_names(tree: ast.Module) -> set[str]:
    """Return the names that the statements at the top level of a module assign or import.

    `*` stands for those of `from MODULE import *`, except of this package, which defines no study, run or ledger.
    """
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) and not _is_of_package(node)]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    return names | {target.id for target in targets if isinstance(target, ast.Name)}


def has_only_constants(tree: ast.Module) -> bool:
    """True if a module has nothing but constants and names of this package, so that its execution tells no more."""
    values = [node.value if isinstance(node, ast.Assign | ast.Expr) else node for node in tree.body]
    return all(isinstance(value, ast.Constant) or _is_of_package(value) for value in values)


def _is_of_package(node: ast.AST) -> bool:
    """True for `from flaxformer… import *`."""
    if not isinstance(node, ast.ImportFrom) or node.level or node.names[0].name != "*":
        return False
    return (node.module or "").partition(".")[0] == "flaxformer"


def siblings(path: Path) -> list[Path]:
    """Return what is in the folder of a path; nothing if that cannot be read."""
    try:
        return sorted(path.parent.iterdir())
    except OSError:
        return []


COMMANDS = {"study": "flaxformer run", "run": "flaxformer train", "ledger": "flaxformer improve"}
"""Command for a file by the name that it defines."""
CLASSES = {"study": "Study", "run": "Run", "ledger": "Ledger"}
"""Class of what a file defines by a name."""


def defines_none_of(file: Path, classes: Mapping[str, str], further: Sequence[str]) -> str:
    """Return the message for a file without the names that a command reads.

    Args:
      file: the file.
      classes: the names, with the class of each.
      further: names of `COMMANDS` that it defines.
    """
    names = " and no ".join(f"`{name}`" for name in classes)
    if further:
        return f"'{file}' defines `{further[0]}` and no {names}; expected {COMMANDS[further[0]]} {file}"
    forms = " or ".join(f"`{name} = {kind}(...)`" for name, kind in classes.items())
    return f"'{file}' defines no {names}; expected {forms}"


def near_names(path: Path, candidates: Iterable[Path]) -> str:
    """Return the question for the candidate whose name is most like that of a path; empty if none is like it."""
    by_name = {candidate.name.removesuffix(".py"): candidate for candidate in candidates}
    near = difflib.get_close_matches(path.name.removesuffix(".py"), by_name, n=1)  # ".py" is no likeness
    return f"did you mean '{by_name[near[0]]}'?" if near else ""
