"""Overrides: changes of config fields given as text, as on a command line."""

import ast
import math
import types
import typing
from collections.abc import Sequence

from flaxformer.core.paths import check_field, check_required, get_at, replace_at
from flaxformer.core.struct import Config, ConfigT, accepts_class, alternatives, choices, named_values, type_hints
from flaxformer.system.errors import UserError, did_you_mean, shorten

NOT_PYTHON = (SyntaxError, ValueError, MemoryError, RecursionError)
"""Exceptions of Python's parser; the last two are those of a text that is nested too deeply."""


def override(config: ConfigT, texts: Sequence[str]) -> ConfigT:
    """Apply overrides `path=value`, such as `model.positions=LearnedPositions(max_length=64)`.

    A class without parentheses, `model.attention=SigmoidAttention`, keeps the fields that both classes have.

    Raises:
      UserError: a text that is not an override, an unknown path or one given twice, or a value that its field does
        not accept.
    """
    changes: dict[str, object] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if path in changes:
            raise UserError(f"'{path}' is changed twice, the second time to '{shorten(value)}'; expected it once")
        if not equals:
            raise UserError(f"override '{shorten(text)}'; expected path=value, such as model.layers=2")
        hint = _hint_at(config, path)
        changes[path] = choices(hint).get(value) or _parse(value, hint, path)
    return replace_at(config, changes)


def _hint_at(config: Config, path: str) -> object:
    """Return the type of the field at a path; for an item of a tuple, the type of the items."""
    before, _, name = path.rpartition(".")
    parent = get_at(config, before) if before else config
    check_field(parent, name, path)
    if isinstance(parent, tuple):
        return typing.get_args(_hint_at(config, before))[0]
    return type_hints(type(parent))[name]


def _parse(text: str, hint: object, path: str) -> object:
    """Read a value according to the type of its field."""
    items = next((typing.get_args(kind)[0] for kind in alternatives(hint) if typing.get_origin(kind) is tuple), None)
    if items is str and text[:1] not in ("(", "["):
        return tuple(text.split(",")) if text else ()
    if items is not None and choices(items):
        return _parse_tuple(text, items, path)
    kinds = choices(hint)
    if kinds and not (bool in alternatives(hint) and text.lower() in ("true", "false")):
        return _parse_config(text, kinds, named_values(hint), path, types.NoneType in alternatives(hint))
    if text in ("true", "false"):
        text = text.capitalize()
    try:
        value = ast.literal_eval(text)
    except NOT_PYTHON:
        return text
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{path} is '{shorten(text)}'; expected a finite number")
    return value if str not in alternatives(hint) or value is None else text


def _parse_tuple(text: str, hint: object, path: str) -> tuple[object, ...]:
    """Read a tuple of configs, `(Block(...), Block(...))`, or a single one."""
    try:
        node = ast.parse(text, mode="eval").body
    except NOT_PYTHON:
        raise UserError(f"{path} is '{shorten(text)}'; expected ({', '.join(choices(hint))}(...), ...)") from None
    parts = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    return tuple(_parse(ast.unparse(part), hint, f"{path}.{number}") for number, part in enumerate(parts))


def _parse_config(
    text: str, kinds: dict[str, type[Config]], named: dict[str, Config], path: str, may_be_none: bool
) -> Config | None:
    """Read a config: a named value such as `post`, or a class with its fields such as `Sinusoidal(base=100)`."""
    if text in named:
        return named[text]
    if may_be_none and text.lower() == "none":
        return None
    valid = [*(["none"] if may_be_none else []), *named, *(name for name in kinds if "." not in name)]
    try:
        node = ast.parse(text, mode="eval").body
    except NOT_PYTHON:
        name = text.partition("(")[0]
        expected = f"; expected {name}(field=number, ...)" if name in kinds else did_you_mean(name, valid)
        raise UserError(f"{path} is '{shorten(text)}'{expected}") from None
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = ast.unparse(call.func)
    if name not in kinds:
        raise UserError(f"{path} is '{shorten(text)}'{did_you_mean(name, valid)}")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise UserError(f"{path} is '{shorten(text)}'; expected {name}(field=number, ...)")
    values = {str(keyword.arg): _field_value(keyword, kinds[name], path, text) for keyword in call.keywords}
    check_required(kinds[name], values, path, shorten(text))
    return kinds[name](**values)


def _field_value(keyword: ast.keyword, kind: type[Config], path: str, text: str) -> object:
    """Read the value of one field in `Class(field=value)`: plain data, or a nested config."""
    hint = type_hints(kind).get(str(keyword.arg))
    if isinstance(keyword.value, ast.Name) and accepts_class(hint) and keyword.value.id in choices(hint):
        return choices(hint)[keyword.value.id]
    if choices(hint) and isinstance(keyword.value, ast.Call | ast.Name | ast.Tuple):
        return _parse(ast.unparse(keyword.value), hint, f"{path}.{keyword.arg}")
    try:
        return ast.literal_eval(keyword.value)
    except NOT_PYTHON:
        raise UserError(f"{path} is '{shorten(text)}'; expected {kind.__name__}(field=number, ...)") from None
