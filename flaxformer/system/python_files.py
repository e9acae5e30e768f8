"""Python files of studies, jobs and benchmarks: where they are, and what they declare."""

import ast
import difflib
from collections.abc import Iterable
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
    """Return the names that the statements at the top level of a module assign or import."""
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    imported = [alias for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    names = {alias.asname or alias.name for alias in imported}
    return names | {target.id for target in targets if isinstance(target, ast.Name)}


def siblings(path: Path) -> list[Path]:
    """Return what is in the folder of a path; nothing if that cannot be read."""
    try:
        return sorted(path.parent.iterdir())
    except OSError:
        return []


def near_names(path: Path, candidates: Iterable[Path]) -> str:
    """Return the question for the candidate whose name is most like that of a path; empty if none is like it."""
    by_name = {candidate.name: candidate for candidate in candidates}
    by_name |= {candidate.stem: candidate for candidate in by_name.values()}
    near = difflib.get_close_matches(path.name, by_name, n=1)
    return f"did you mean '{by_name[near[0]]}'?" if near else ""
