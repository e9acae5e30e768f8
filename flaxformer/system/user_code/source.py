"""Source files of user modules: identifying them, parsing them, and copying them."""

import ast
import functools
import importlib
import importlib.util
import linecache
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from flaxformer.system.files import digest_of, file_names, make_folder, remove_abandoned, write_atomically

PACKAGE = Path(__file__).resolve().parents[2]
INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
INSTALLED_IN = {"site-packages", "dist-packages"}
"""Names of folders of installed packages: those of another environment or of the user are on `sys.path` too."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
_SOURCES: dict[str, tuple[object, str]] = {}
"""Each user module's text when it was first read, with the module's spec; a repeated import has another spec."""


def is_user_file(name: str | None) -> bool:
    """True if a source file lies outside this package, the standard library and installed packages.

    The package's `experiments/`, which a wheel contains, is user code as in a clone. A notebook cell counts as a user
    file; code without any source text, such as a generated method, does not.
    """
    if not name or (os.path.isabs(name) and not _lies_outside(name)):  # asked of every module that is imported
        return False
    return _lies_outside(name) if Path(name).exists() else bool(linecache.getlines(name))


@functools.cache
def _lies_outside(name: str) -> bool:
    path = os.path.realpath(name) if Path(name).is_symlink() else os.path.abspath(name)
    return _folder_lies_outside(os.path.dirname(path))


@functools.cache  # of the 2,000 modules of a process that trains, many are in one folder
def _folder_lies_outside(name: str) -> bool:
    folder = Path(name).resolve()
    if folder.is_relative_to(PACKAGE / "experiments"):
        return True
    is_installed = any(folder.is_relative_to(installed) for installed in (PACKAGE, *INSTALLED))
    return not is_installed and not INSTALLED_IN & {*folder.parts}


def is_user_module(value: object) -> TypeGuard[types.ModuleType]:
    """True if an object is a module with a user file."""
    return isinstance(value, types.ModuleType) and is_user_file(getattr(value, "__file__", None))


def is_user_class(kind: type) -> bool:
    """True if a class is defined in a user module or interactively."""
    return is_user_module(sys.modules.get(kind.__module__)) or is_interactive(kind.__module__)


def is_interactive(module: str | None) -> bool:
    """True for the module of a notebook, or of a program that is read from no file."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return module == "__main__" and not (file and Path(file).exists())


def module_of(file: Path) -> types.ModuleType | None:
    """Return the module that was loaded from a file; None if there is none."""
    names = {str(file), str(file.absolute()), str(file.resolve())}
    return next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) in names), None)


def source_path(module: str) -> str:
    """Return a module's source file relative to the folder that it is imported from, such as "parts/mixers.py"."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or module == "__main__" or "@" in module:  # interactive, or run or loaded as a file
        return Path(file).name if file else module
    inside = module.replace(".", "/")
    return f"{inside}/__init__.py" if Path(file).stem == "__init__" else f"{inside}.py"


def user_modules(file: Path | None, modules: Iterable[types.ModuleType] = ()) -> list[types.ModuleType]:
    """Return all user modules that are needed, sorted by name.

    Args:
      file: a file whose module is needed.
      modules: modules that are needed too; those of installed packages are left out.

    Returns:
      These modules and the user modules that they import, directly or through others.
    """
    first = None if file is None else module_of(file)
    queue = [*modules, *([] if first is None else [first])]
    reached: dict[str, types.ModuleType] = {}
    while queue:
        module = queue.pop()
        if module.__name__ not in reached and is_user_module(module):
            reached[module.__name__] = module
            queue += imported_modules(module_tree(module), module)
    return [reached[name] for name in sorted(reached)]


# --- text and syntax trees -------------------------------------------------------------------------------


def remember_sources(module: types.ModuleType) -> None:
    """Read the text of a module and of all that it imports now, so that a later edit is not mistaken for this code."""
    for needed in user_modules(None, [module]):
        module_source(needed)


def module_source(module: types.ModuleType) -> str:
    """Return the text of a user module as it was at the first call."""
    spec, (former_spec, text) = module.__spec__, _SOURCES.get(module.__name__, (None, ""))
    if spec is None or former_spec is not spec:
        file = Path(str(module.__file__))
        text = file.read_text(errors="replace") if file.suffix == ".py" and file.is_file() else ""
        _SOURCES[module.__name__] = (spec, text)
    return text


def is_edited(module: types.ModuleType) -> bool:
    """True if a module's file has changed since it was read."""
    text = module_source(module)
    file = Path(str(module.__file__))
    return file.is_file() and file.read_text(errors="replace") != text


@functools.lru_cache(maxsize=256)
def parse(text: str) -> ast.Module:
    """Return the syntax tree of a text; an empty one if it is not Python."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def module_tree(module: types.ModuleType) -> ast.Module:
    """Return the syntax tree of a user module."""
    return parse(module_source(module))


def tree_of_file(name: str) -> ast.Module:
    """Return the syntax tree of a file or a notebook cell, by the name that a code object has of it."""
    module = module_of(Path(name)) if Path(name).exists() else None
    return parse("".join(linecache.getlines(name))) if module is None else module_tree(module)


def function_nodes(code: types.CodeType) -> list[ast.AST]:
    """Return the definitions that begin on a code object's first line: one function, or every lambda."""
    nodes: list[ast.AST] = []
    for node in ast.walk(tree_of_file(code.co_filename)):
        if isinstance(node, Function) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            nodes += [node] if first == code.co_firstlineno else []
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>":
            nodes += [node] if node.lineno == code.co_firstlineno else []
    return nodes


def code_text(code: types.CodeType) -> str:
    """Return the compiled code of a function without a source text, with its constants and inner functions."""
    constants = [code_text(item) if isinstance(item, types.CodeType) else item for item in code.co_consts]
    return repr((code.co_code, code.co_names, constants))


def normalized_text(node: ast.AST) -> str:
    """Return a syntax tree as text, equal in every Python version: without positions, docstrings and empty fields."""
    parts = []
    for name, value in ast.iter_fields(node):
        items = [item for item in (value if isinstance(value, list) else [value]) if not is_docstring(item)]
        if value is not None and items and name not in ("ctx", "type_comment", "kind"):
            texts = (normalized_text(item) if isinstance(item, ast.AST) else repr(item) for item in items)
            parts.append(f"{name}={','.join(texts)}")
    return f"{type(node).__name__}({' '.join(parts)})"


def is_docstring(node: object) -> bool:
    """True if a statement is a string and nothing else."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# --- imports ---------------------------------------------------------------------------------------------


def imported_modules(node: ast.AST, module: types.ModuleType | None) -> list[types.ModuleType]:
    """Return the user modules that the import statements in a module's syntax tree name."""
    functions = (inner for inner in ast.walk(node) if isinstance(inner, Function))
    local = {id(inner) for function in functions for inner in ast.walk(function)}
    names: dict[str, bool] = {}
    for statement in ast.walk(node):
        named: list[str] = []
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                parts = alias.name.split(".")
                named += [".".join(parts[: n + 1]) for n in range(len(parts))]
        elif isinstance(statement, ast.ImportFrom) and (base := imported_module_name(statement, module)):
            named += [base, *(f"{base}.{alias.name}" for alias in statement.names)]
        is_local = id(statement) in local  # an import inside a function may not have run yet
        names |= {name: is_local or names.get(name, False) for name in named}
    modules = (_find_module(name, load) for name, load in names.items())
    return [loaded for loaded in modules if loaded is not None]


def imported_module_name(node: ast.ImportFrom, module: types.ModuleType | None) -> str:
    """Return the absolute name of the module that `from … import` reads; an empty string if it cannot be resolved."""
    if not node.level:
        return node.module or ""
    try:
        package = getattr(module, "__package__", None) or ""
        return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:
        return ""


def _find_module(name: str, load: bool) -> types.ModuleType | None:
    """Return a user module by name, or None; with `load`, import it if it is not imported yet."""
    module = sys.modules.get(name)
    if module is None and load and name.partition(".")[0] not in sys.stdlib_module_names:
        try:
            spec = importlib.util.find_spec(name)
            module = importlib.import_module(name) if spec is not None and is_user_file(spec.origin) else None
        except Exception:  # the module's own import statement reports the failure
            return None
    return module if is_user_module(module) else None


# --- copies ----------------------------------------------------------------------------------------------


def copy_sources(folder: Path, modules: Sequence[types.ModuleType]) -> str:
    """Write the text of modules into folder/DIGEST/, at the paths by which they are imported.

    Returns:
      DIGEST, which is of all texts, so that each version is written once; an empty string without modules.
    """
    texts = {source_path(module.__name__): module_source(module).encode() for module in modules}
    if not texts:
        return ""
    digest = _digest_of_texts(texts)
    for name, text in texts.items():
        path = folder / digest / name
        make_folder(path.parent)
        if path.exists():
            remove_abandoned(path)
        else:
            write_atomically(path, text)
    return digest


def is_unchanged_copy(folder: Path) -> bool:
    """True if folder/, whose name is a digest, holds the texts that `copy_sources` wrote there and no others."""
    names = [name for name in file_names(folder) if "__pycache__" not in Path(name).parts]
    return _digest_of_texts({name: (folder / name).read_bytes() for name in names}) == folder.name


def _digest_of_texts(texts: Mapping[str, bytes]) -> str:
    return digest_of(b"".join(name.encode() + b"\0" + text + b"\0" for name, text in sorted(texts.items())))


def path_of_copy(digest: str, file: Path | None) -> str | None:
    """Return the path of a file's copy, below the folder of code/, after `copy_sources`; None if it was not copied."""
    return f"code/{digest}/{file.name}" if digest and file is not None else None


def place_of(error: BaseException) -> str:
    """Return "FILE, line N, in FUNCTION" for the innermost frame of user code in a traceback; "" if there is none."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    innermost = next((frame for frame in frames if is_user_file(frame.filename)), None)
    return "" if innermost is None else f"{innermost.filename}, line {innermost.lineno}, in {innermost.name}"


def describe(error: BaseException) -> str:
    """Return an exception in one line, after its place in the user's code if it has one."""
    first, *_ = str(error).splitlines() or [""]
    return ": ".join(filter(None, [place_of(error), type(error).__name__, first]))
