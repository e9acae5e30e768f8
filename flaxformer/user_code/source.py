"""Source files of the user's modules: which they are, their syntax trees, and copies of them."""

import ast
import functools
import importlib
import importlib.util
import linecache
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flaxformer.files import digest_of, write_atomically

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_user_file(name: str | None) -> bool:
    """True if source code lies outside this package, the standard library and installed packages.

    A cell of a notebook is user code; code without any source, such as a generated method, is not.
    """
    return bool(name) and (_lies_outside(name) if Path(name).exists() else bool(linecache.getlines(name)))  # type: ignore[arg-type]


@functools.cache
def _lies_outside(name: str) -> bool:
    path = Path(name).resolve()
    return not any(path.is_relative_to(folder) for folder in (PACKAGE, *INSTALLED))


def is_user_module(value: object) -> bool:
    """True if an object is a module that the user wrote, of which there is a file."""
    return isinstance(value, types.ModuleType) and is_user_file(getattr(value, "__file__", None))


def is_user_class(kind: type) -> bool:
    """True if a class is defined in a module of the user's, or interactively."""
    module = sys.modules.get(kind.__module__)
    return is_user_module(module) or (kind.__module__ == "__main__" and not getattr(module, "__file__", None))


def module_of(file: Path) -> types.ModuleType | None:
    """The module that was loaded from a file."""
    names = {str(file), str(file.absolute()), str(file.resolve())}
    return next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) in names), None)


def place(module: str) -> str:
    """A module's source relative to the folder that it is imported from, such as "parts/mixers.py"."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or module == "__main__" or "@" in module:  # interactive, or run or loaded as a file
        return Path(file).name if file else module
    inside = module.replace(".", "/")
    return f"{inside}/__init__.py" if Path(file).stem == "__init__" else f"{inside}.py"


def user_modules(file: Path | None, found: Iterable[types.ModuleType] = ()) -> list[types.ModuleType]:
    """The user's modules among those found, that of a file, and all that they import, directly or not, by name."""
    first = None if file is None else module_of(file)
    waiting = [*found, *([] if first is None else [first])]
    known: dict[str, types.ModuleType] = {}
    while waiting:
        module = waiting.pop()
        if module.__name__ not in known and is_user_module(module):
            known[module.__name__] = module
            waiting += imports(module_tree(module), module)
    return [known[name] for name in sorted(known)]


# --- text and syntax trees -------------------------------------------------------------------------------


_SOURCES: dict[str, tuple[object, str]] = {}
"""Each user module's text when it was first read, with the module's spec: another import has another spec."""


def remember_sources(module: types.ModuleType) -> None:
    """Read the text of a module and of all that it imports now, so that a later edit is not taken for what runs."""
    for own in user_modules(None, [module]):
        module_source(own)


def module_source(module: types.ModuleType) -> str:
    """The text of a user module as it was when it was first asked for."""
    spec, (known, text) = module.__spec__, _SOURCES.get(module.__name__, (None, ""))
    if spec is None or known is not spec:
        file = Path(str(module.__file__))
        text = file.read_text(errors="replace") if file.suffix == ".py" and file.is_file() else ""
        _SOURCES[module.__name__] = (spec, text)
    return text


def is_edited(module: types.ModuleType) -> bool:
    """True if a module's file is no longer what was read of it."""
    text = module_source(module)
    file = Path(str(module.__file__))
    return file.is_file() and file.read_text(errors="replace") != text


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def module_tree(module: types.ModuleType) -> ast.Module:
    """The syntax tree of a user module."""
    return _parsed(module_source(module))


def tree_of_file(name: str) -> ast.Module:
    """The syntax tree of a code object's file: a module's, or a notebook cell's."""
    module = module_of(Path(name)) if Path(name).exists() else None
    return _parsed("".join(linecache.getlines(name))) if module is None else module_tree(module)


def function_nodes(code: types.CodeType) -> list[ast.AST]:
    """The definitions that begin where a code object does: one function, or every lambda of its line."""
    found: list[ast.AST] = []
    for node in ast.walk(tree_of_file(code.co_filename)):
        if isinstance(node, Function) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found += [node] if first == code.co_firstlineno else []
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>":
            found += [node] if node.lineno == code.co_firstlineno else []
    return found


def class_nodes(kind: type) -> list[ast.AST]:
    """The definitions of a class's qualified name, in its module or in the cell that defines a method of it."""
    module = sys.modules.get(kind.__module__)
    if is_user_module(module):
        tree = module_tree(module)  # type: ignore[arg-type]
    else:
        codes = (item.__code__ for item in vars(kind).values() if isinstance(item, types.FunctionType))
        own = next((code.co_filename for code in codes if is_user_file(code.co_filename)), None)
        tree = ast.Module(body=[], type_ignores=[]) if own is None else tree_of_file(own)
    found: list[ast.AST] = [tree]
    for name in kind.__qualname__.split("."):
        if name != "<locals>":
            inside = (node for one in found for node in _statements(one))
            found = [node for node in inside if isinstance(node, ast.ClassDef | Function) and node.name == name]
    return [node for node in found if isinstance(node, ast.ClassDef)]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a definition or module, those inside `if`, `try`, `with` and loops too."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.ExceptHandler):
            yield from _statements(child)


def normalized(node: ast.AST) -> str:
    """A syntax tree as text that no version of Python changes: without positions, docstrings and empty fields."""
    parts = []
    for name, value in ast.iter_fields(node):
        items = [item for item in (value if isinstance(value, list) else [value]) if not is_docstring(item)]
        if value is not None and items and name not in ("ctx", "type_comment", "kind"):
            shown = (normalized(item) if isinstance(item, ast.AST) else repr(item) for item in items)
            parts.append(f"{name}={','.join(shown)}")
    return f"{type(node).__name__}({' '.join(parts)})"


def is_docstring(node: object) -> bool:
    """True if a statement is a string alone, which no program reads."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# --- imports ---------------------------------------------------------------------------------------------


def imports(node: ast.AST, module: types.ModuleType | None) -> list[types.ModuleType]:
    """The user's modules that the import statements in a syntax tree name."""
    names: list[str] = []
    for found in ast.walk(node):
        if isinstance(found, ast.Import):
            for alias in found.names:
                parts = alias.name.split(".")
                names += [".".join(parts[: n + 1]) for n in range(len(parts))]
        elif isinstance(found, ast.ImportFrom) and (base := origin(found, module)):
            names += [base, *(f"{base}.{alias.name}" for alias in found.names)]
    inside = not isinstance(node, ast.Module)  # an import inside a function may not have run yet
    modules = (_module(name, load=inside) for name in dict.fromkeys(names))
    return [own for own in modules if own is not None]


def origin(node: ast.ImportFrom, module: types.ModuleType | None) -> str:
    """The absolute name of the module that `from … import` reads; empty where there is none."""
    if not node.level:
        return node.module or ""
    try:
        package = getattr(module, "__package__", None) or ""
        return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:
        return ""


def _module(name: str, load: bool) -> types.ModuleType | None:
    """A module of the user's by name; imported now, where `load` says so, if it is not yet."""
    module = sys.modules.get(name)
    if module is None and load and name.partition(".")[0] not in sys.stdlib_module_names:
        try:
            spec = importlib.util.find_spec(name)
            module = importlib.import_module(name) if spec is not None and is_user_file(spec.origin) else None
        except Exception:  # it fails where it is used, too, and with a message of its own
            return None
    return module if is_user_module(module) else None


# --- copies ----------------------------------------------------------------------------------------------


def copy_sources(folder: Path, modules: Sequence[types.ModuleType]) -> str:
    """Write the text of modules into folder/DIGEST, laid out as they are imported; returns DIGEST, "" for none.

    The digest is of all texts, so that each version is written once.
    """
    texts = {place(module.__name__): module_source(module).encode() for module in modules}
    if not texts:
        return ""
    own = digest_of(b"".join(name.encode() + b"\0" + text + b"\0" for name, text in sorted(texts.items())))
    for name, text in texts.items():
        path = folder / own / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
    return own
