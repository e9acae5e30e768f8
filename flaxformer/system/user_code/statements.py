"""Analysis of a module's statements: the names that they read, bind and change, and effects on other modules."""

import ast
import inspect
import sys
import types
from collections.abc import Iterator

from flaxformer.system.user_code import source
from flaxformer.system.user_code.source import is_user_class, is_user_file, is_user_module


def is_user_code(item: object) -> bool:
    """True if an object is a function or class that the user wrote."""
    if isinstance(item, type):
        return is_user_class(item)
    function = inspect.unwrap(item) if callable(item) else None
    return isinstance(function, types.FunctionType) and is_user_file(function.__code__.co_filename)


def attribute_chains(node: ast.AST) -> list[list[str]]:
    """Return each attribute access `a.b.c` in a syntax tree as the list of its names."""
    chains = []
    for found in ast.walk(node):
        names, value = [], found
        while isinstance(value, ast.Attribute):
            names.append(value.attr)
            value = value.value
        if names and isinstance(value, ast.Name):
            chains.append([value.id, *reversed(names)])
    return chains


def names_used_whole(node: ast.AST) -> set[str]:
    """Return the names that are used for more than reading an attribute."""
    read = {id(found.value) for found in ast.walk(node) if isinstance(found, ast.Attribute)}
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name) and id(found) not in read}


def names_bound(node: ast.stmt) -> set[str]:
    """Return the global names that a statement binds, or whose objects it changes."""
    if isinstance(node, ast.ClassDef | source.Function):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store | ast.Del)}
    return stored | {target.id for target in _changed_objects(node) if isinstance(target, ast.Name)}


def _changed_objects(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the objects that a statement changes by assigning to a part of them or by calling a method."""
    for found in ast.walk(node):
        target: ast.expr | None = None
        if isinstance(found, ast.Attribute | ast.Subscript) and isinstance(found.ctx, ast.Store | ast.Del):
            target = found
        elif isinstance(found, ast.Expr) and isinstance(found.value, ast.Call):
            target = found.value.func if isinstance(found.value.func, ast.Attribute) else None
        while isinstance(target, ast.Attribute | ast.Subscript | ast.Call):
            target = target.func if isinstance(target, ast.Call) else target.value
        if target is not None:
            yield target


def star_imports(module: types.ModuleType) -> Iterator[types.ModuleType]:
    """Yield the user modules from which a module imports `*`."""
    for node in source.module_tree(module).body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            found = sys.modules.get(source.imported_module_name(node, module))
            if is_user_module(found):
                yield found


def acts_on_others(node: ast.stmt, module: types.ModuleType) -> bool:
    """True if a statement may do more than define or fill names of its own module."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass) or source.is_docstring(node) or _is_main_guard(node):
        return False
    if isinstance(node, ast.ClassDef | source.Function):
        kind = vars(module).get(node.name)
        hooked = isinstance(node, ast.ClassDef) and isinstance(kind, type) and _registers_itself(kind)
        return hooked or any(_may_register(decorator, module) for decorator in node.decorator_list)
    if any(_is_call(found) for found in ast.walk(node)):
        return True
    return any(not (isinstance(one, ast.Name) and _is_private(one.id, module)) for one in _changed_objects(node))


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}


def _is_call(node: ast.AST) -> bool:
    """True if a node is a statement that calls a plain function other than print."""
    function = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return isinstance(function, ast.Name) and function.id != "print"


def _is_private(name: str, module: types.ModuleType) -> bool:
    """True if no other module holds a name's object, so that changing the object affects its own module alone."""
    value = vars(module).get(name)
    if not isinstance(value, dict | list | set) and not is_user_class(type(value)):
        return False
    others = [m for key, m in sys.modules.copy().items() if m is not module and _may_share(key, m)]
    return not any(value is item for other in others for item in list(vars(other).values()))


def _may_share(name: str, module: object) -> bool:
    return isinstance(module, types.ModuleType) and (name.partition(".")[0] == "flaxformer" or is_user_module(module))


def _may_register(decorator: ast.expr, module: types.ModuleType) -> bool:
    """True if a decorator is user code, which may add what it decorates to a table."""
    names = {found.id for found in ast.walk(decorator) if isinstance(found, ast.Name)}
    return any(is_user_code(vars(module).get(name)) for name in names)


def _registers_itself(kind: type) -> bool:
    """True if defining a class runs user code: an `__init_subclass__` or a metaclass."""
    hooks = [base for base in kind.__mro__[1:] if "__init_subclass__" in vars(base)]
    return any(map(is_user_class, hooks)) or is_user_class(type(kind))
