"""Values at dotted paths of a config: read, replaced together, and components replaced by those of another class."""

import dataclasses
import types
from collections.abc import Collection, Mapping
from typing import Any, cast

from flaxformer.core.struct import REQUIRED, Config, ConfigT, accepts_class, alternatives, type_hints
from flaxformer.system.errors import UserError, did_you_mean, quote


def get_at(config: Config, path: str) -> Any:
    """Return the value at a dotted path.

    Raises:
      UserError: the path names no field.
    """
    value: Any = config
    for name in path.split("."):
        check_field(value, name, path)
        value = value[int(name)] if isinstance(value, tuple) else getattr(value, name)
    return value


def replace_at(config: ConfigT, changes: Mapping[str, object], within: str = "") -> ConfigT:
    """Return the config with the values at dotted paths replaced together; the result is checked again.

    A class in place of a config replaces the class alone: {"model.attention": SigmoidAttention} keeps the fields that
    both classes have (see `as_kind`).

    Raises:
      UserError: a path names no field, or the result is not a valid config; it quotes the path after `within`, the
        path of the config itself with a dot.
    """
    return cast(ConfigT, _replace_within(config, changes, within))


def _replace_within(node: object, changes: Mapping[str, object], within: str) -> object:
    """Replace values below a config, or below a tuple of configs, whose own path is `within`."""
    nested: dict[str, dict[str, object]] = {}
    values: dict[str, object] = {}
    for path, value in changes.items():
        name, _, inner_path = path.partition(".")
        check_field(node, name, within + path)
        if inner_path:
            nested.setdefault(name, {})[inner_path] = value
        else:
            values[name] = value
    for name, below in nested.items():
        old = node[int(name)] if isinstance(node, tuple) else getattr(node, name)
        values[name] = _replace_within(_changed(old, values.get(name, old), within + name), below, f"{within}{name}.")
    if isinstance(node, tuple):
        items = enumerate(node)
        return tuple(_changed(old, values.get(str(i), old), f"{within}{i}") for i, old in items)
    changed = {name: _changed(getattr(node, name), value, within + name) for name, value in values.items()}
    hints = type_hints(type(node))
    for name, value in values.items():  # what has no field of its own to keep decides about the class itself
        if accepts_class(hints[name]) and isinstance(value, type) and not dataclasses.fields(getattr(node, name)):
            changed[name] = value
    return cast(Config, node).replace(**changed)


def _changed(old: object, new: object, path: str) -> object:
    """Return the new value of a field; a config class stands for the old config as that class."""
    return as_kind(old, new, path) if isinstance(new, type) and issubclass(new, Config) else new


def as_kind(config: object, kind: type[ConfigT], path: str) -> ConfigT:
    """Return a config of class `kind` with the values of those fields that `config` has too, and other defaults.

    A None or a choice that the field of `kind` does not accept is left at its default.

    Args:
      config: the config.
      kind: the class.
      path: path of the config, for the message.

    Raises:
      UserError: `kind` has a required field that `config` does not have.
    """
    fields = dataclasses.fields(config) if isinstance(config, Config) else ()
    old = {field.name: getattr(config, field.name) for field in fields}
    new = [field for field in dataclasses.fields(kind) if field.name in old]
    shared = {field.name: old[field.name] for field in new if _accepts(kind, field, old[field.name])}
    check_required(kind, shared, path, kind.__name__)
    return kind(**shared)


def _accepts(kind: type[Config], field: "dataclasses.Field[object]", value: object) -> bool:
    """True unless the value is a None or a choice that the field does not have."""
    if value is None:
        return types.NoneType in alternatives(type_hints(kind)[field.name])
    choices = field.metadata["choices"]
    return choices is None or value in choices


def check_required(kind: type[Config], names: Collection[str], path: str, text: str) -> None:
    """Check that `names` has every required field of a class.

    Raises:
      UserError: it does not; the message quotes the path and the `text` of its value.
    """
    is_required = {field.name: field.default is field.default_factory is REQUIRED for field in dataclasses.fields(kind)}
    required = [name for name in is_required if is_required[name]]
    if missing := [name for name in required if name not in names]:
        fields = ", ".join(f"{name}=..." for name in required)
        raise UserError(f"{path} is '{text}', without {', '.join(missing)}; expected {kind.__name__}({fields})")


def check_field(config: object, name: str, path: str) -> None:
    """Check that a config has the field `name`, or that a tuple of configs has the item of that number.

    Raises:
      UserError: it does not; the message quotes the whole `path`.
    """
    if isinstance(config, tuple):
        if not name.isdigit() or int(name) >= len(config):
            raise UserError(f"'{path}': '{name}' is not an item; expected a number from 0 to {len(config) - 1}")
        return
    if not isinstance(config, Config):
        raise UserError(f"'{path}': {quote(config)} has no fields")
    names = [field.name for field in dataclasses.fields(config)]
    if name not in names:
        raise UserError(f"'{path}': {type(config).__name__} has no field '{name}'{did_you_mean(name, names)}")
