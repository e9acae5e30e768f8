"""Overrides: fields of a config changed by texts, as on a command line."""

import ast
import types
import typing
from collections.abc import Sequence
from typing import Any

from flaxformer.struct import (
    Config,
    ConfigT,
    UserError,
    alternatives,
    check_field,
    choices,
    did_you_mean,
    get_at,
    named_values,
    replace_at,
    type_hints,
)


def override(config: ConfigT, texts: Sequence[str]) -> ConfigT:
    """Apply `path=value` as written on a command line: `model.positions=LearnedPositions(max_length=64)`."""
    changes = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"override '{text}'; expected path=value, such as model.layers=2")
        changes[path] = _parse(value, _hint_at(config, path), path)
    return replace_at(config, changes)


def _hint_at(config: Config, path: str) -> Any:
    """The type of the field at a path; of an item, that of its tuple's items."""
    before, _, name = path.rpartition(".")
    parent = get_at(config, before) if before else config
    check_field(parent, name, path)
    if isinstance(parent, tuple):
        return typing.get_args(_hint_at(config, before))[0]
    return type_hints(type(parent))[name]


def _parse(text: str, hint: Any, path: str) -> Any:
    """Read a value by the type of its field."""
    items = next((typing.get_args(kind)[0] for kind in alternatives(hint) if typing.get_origin(kind) is tuple), None)
    if items is not None and choices(items):
        return _parse_tuple(text, items, path)
    kinds = choices(hint)
    if kinds and not (bool in alternatives(hint) and text.lower() in ("true", "false")):
        return _parse_config(text, kinds, named_values(hint), path, types.NoneType in alternatives(hint))
    if text in ("true", "false"):
        text = text.capitalize()
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return value if str not in alternatives(hint) or value is None else text


def _parse_tuple(text: str, hint: Any, path: str) -> tuple[Any, ...]:
    """Read configs as `(Block(...), Block(...))`, or one of them alone."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        raise UserError(f"{path} is '{text}'; expected ({', '.join(choices(hint))}(...), ...)") from None
    parts = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    return tuple(_parse(ast.unparse(one), hint, f"{path}.{number}") for number, one in enumerate(parts))


def _parse_config(
    text: str, kinds: dict[str, type[Config]], named: dict[str, Any], path: str, may_be_none: bool
) -> Config | None:
    """Read a part: a named value such as `post`, or a class with its fields such as `Sinusoidal(base=100)`."""
    if text in named:
        return named[text]
    if may_be_none and text.lower() == "none":
        return None
    own = [*(["none"] if may_be_none else []), *named, *(name for name in kinds if "." not in name)]
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        name = text.partition("(")[0]
        wanted = f"; expected {name}(field=number, ...)" if name in kinds else did_you_mean(name, own)
        raise UserError(f"{path} is '{text}'{wanted}") from None
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = ast.unparse(call.func)
    if name not in kinds:
        raise UserError(f"{path} is '{text}'{did_you_mean(name, own)}")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise UserError(f"{path} is '{text}'; expected {name}(field=number, ...)")
    return kinds[name](**{str(word.arg): _field_value(word, kinds[name], path, text) for word in call.keywords})


def _field_value(word: ast.keyword, kind: type[Config], path: str, text: str) -> Any:
    """The value of one field in a class's parentheses: plain data, or a config in turn."""
    hint = type_hints(kind).get(str(word.arg))
    if choices(hint) and isinstance(word.value, ast.Call | ast.Name | ast.Tuple):
        return _parse(ast.unparse(word.value), hint, f"{path}.{word.arg}")
    try:
        return ast.literal_eval(word.value)
    except (SyntaxError, ValueError):
        raise UserError(f"{path} is '{text}'; expected {kind.__name__}(field=number, ...)") from None
