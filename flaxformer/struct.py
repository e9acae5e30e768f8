"""Configs as pytrees: static fields choose the program, leaves are numbers that the program reads.

>>> class Smoothing(Config):
...     kind: str = static("uniform", choices=("uniform", "unigram"))   # another kind is another program
...     amount: float | None = leaf(None, at_least=0, below=1)          # another amount is the same program

`None` means off and is part of the structure, so a feature that is off is not in the program at all.
Two configs with equal `jax.tree.structure` therefore share one compiled function.
"""

import dataclasses
import difflib
import functools
import json
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from flaxformer.pytree import Node

REQUIRED: Any = dataclasses.MISSING
BOUNDS = {
    "at_least": (lambda value, bound: value >= bound, "at least"),
    "above": (lambda value, bound: value > bound, "above"),
    "at_most": (lambda value, bound: value <= bound, "at most"),
    "below": (lambda value, bound: value < bound, "below"),
}


class UserError(ValueError):
    """A mistake that the user can mend; the command line prints its message alone and exits with code 2."""


def static(default: Any = REQUIRED, *, choices: Collection[str] | None = None, **bounds: float) -> Any:
    """A field that chooses the program: a width, a depth, a kind. It is part of the tree's structure."""
    return _field(default, False, choices, bounds)


def leaf(default: Any = REQUIRED, **bounds: float) -> Any:
    """A number that the program reads, and that `vmap` may map; bounds: at_least, above, at_most, below."""
    return _field(default, True, None, bounds)


def part(default: Any = REQUIRED) -> Any:
    """A nested config."""
    return _field(default, True, None, {})


def _field(default: Any, node: bool, choices: Collection[str] | None, bounds: dict[str, float]) -> Any:
    if unknown := set(bounds) - set(BOUNDS):
        raise TypeError(f"unknown bounds {sorted(unknown)}")
    metadata = {"pytree_node": node, "choices": choices, "bounds": bounds}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Config(Node):
    """Base of every config: a frozen keyword-only dataclass, a pytree, checked when it is built.

    A class may name ready-made values in `named`, so that `model.norm=post` works on the command line.
    """

    named: ClassVar[dict[str, Any]] = {}
    is_abstract: ClassVar[bool] = True
    """True if a class, by its own definition, is only the base of others; subclasses do not inherit it."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__(kw_only=True)
        for field in dataclasses.fields(cls):
            if "pytree_node" not in field.metadata:
                cls.is_abstract = True  # Python keeps a refused class among its base's subclasses
                raise UserError(
                    f"{cls.__name__}.{field.name} is a plain field; expected static(...) for a choice of the program, "
                    "leaf(...) for a number that it reads, part(...) for a config, or ClassVar[...]"
                )
        construct = cls.__init__

        @functools.wraps(construct)
        def __init__(self: Any, *args: Any, **values: Any) -> None:  # noqa: N807
            names = [field.name for field in dataclasses.fields(cls)]
            for name in values:
                if name not in names:
                    raise UserError(f"{cls.__name__} has no field '{name}'{did_you_mean(name, names)}")
            construct(self, *args, **values)

        cls.__init__ = __init__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, hint = getattr(self, field.name), type_hints(type(self))[field.name]
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value := value.item())
            if isinstance(value, str) and (own := named_values(hint)):
                if value not in own:
                    raise UserError(f"{type(self).__name__}.{field.name} is {value!r}{did_you_mean(value, list(own))}")
                object.__setattr__(self, field.name, value := own[value])
            if isinstance(value, list):
                object.__setattr__(self, field.name, value := tuple(value))
            # JAX rebuilds configs around tracers and placeholders: only a user's own values are checked.
            if field.metadata.get("pytree_node", True) and not _is_given(value):
                continue
            where = f"{type(self).__name__}.{field.name}"
            if isinstance(value, int) and not isinstance(value, bool) and float in alternatives(hint):
                object.__setattr__(self, field.name, value := float(value))
            _check_type(where, value, hint)
            _check_value(where, value, field.metadata)
        for problem in self.problems():
            raise UserError(problem)

    def problems(self) -> Iterator[str]:
        """Yield what is wrong between fields that are each right; every message names field, value and expectation."""
        return iter(())


ConfigT = TypeVar("ConfigT", bound=Config)


def _is_given(value: Any) -> bool:
    """True if a value is a user's own, not one with which JAX rebuilds a config."""
    if isinstance(value, tuple):
        return all(isinstance(item, Config) for item in value)
    return isinstance(value, bool | int | float | str | Config | None | type)


type_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
"""The evaluated annotations of a class."""


def alternatives(hint: Any) -> tuple[Any, ...]:
    """`int | None` -> (int, NoneType); a plain type is its own only alternative."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType | typing._UnionGenericAlias) else (hint,)  # type: ignore[attr-defined]


def did_you_mean(name: str, names: Collection[str]) -> str:
    """The end of an error message: the nearest valid name, or all of them."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else f"; it has: {', '.join(names)}"


def choices(hint: Any) -> dict[str, type[Config]]:
    """Every config class that a field of this type may hold, by name: the package's, and those defined so far.

    A class of the user's own is known by its name alone and by its module and name.
    """
    found: dict[str, type[Config]] = {}
    waiting = [kind for kind in alternatives(hint) if isinstance(kind, type) and issubclass(kind, Config)]
    for kind in waiting:
        waiting += [own for own in kind.__subclasses__() if own not in waiting]
        if not vars(kind).get("is_abstract", False) and not kind.__name__.startswith("_"):
            found |= {kind.__name__: kind, qualified_name(kind): kind}  # the latest of a name, as in Python
    return found


def named_values(hint: Any) -> dict[str, Any]:
    """The ready-made values that a field of this type takes by name; none for a field that takes text."""
    kinds = alternatives(hint)
    bases = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)]
    own = {} if str in kinds else {id(kind.named): kind.named for kind in [*bases, *choices(hint).values()]}
    return {name: value for named in own.values() for name, value in named.items()}


def _type_name(hint: Any) -> str:
    names = []
    for kind in alternatives(hint):
        if isinstance(kind, type) and issubclass(kind, Config):
            own = [name for name in choices(kind) if "." not in name]
            names.append(f"{', '.join(own)} or another {kind.__name__}" if own != [kind.__name__] else kind.__name__)
        else:
            names.append("None" if kind is types.NoneType else getattr(kind, "__name__", str(kind)))
    return " or ".join(names)


def _check_type(where: str, value: Any, hint: Any) -> None:
    for kind in alternatives(hint):
        inner, kind = typing.get_args(kind), typing.get_origin(kind) or kind
        if kind is tuple and isinstance(value, tuple) and inner[-1:] == (...,):
            for number, item in enumerate(value):
                _check_type(f"{where}.{number}", item, inner[0])
            return
        if isinstance(value, kind) and not (isinstance(value, bool) and kind in (int, float)):
            return
    found = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
    raise UserError(f"{where} is {found}; expected {_type_name(hint)}")


def _check_value(where: str, value: Any, metadata: Any) -> None:
    if metadata["choices"] is not None and isinstance(value, str) and value not in metadata["choices"]:
        raise UserError(f"{where} is {value!r}{did_you_mean(value, list(metadata['choices']))}")
    if not isinstance(value, bool) and isinstance(value, int | float):
        for name, bound in metadata["bounds"].items():
            holds, words = BOUNDS[name]
            if not holds(value, bound):
                raise UserError(f"{where} is {value!r}; expected a number {words} {bound}")


def get_at(config: Config, path: str) -> Any:
    """The value at a dotted path."""
    value: Any = config
    for name in path.split("."):
        check_field(value, name, path)
        value = value[int(name)] if isinstance(value, tuple) else getattr(value, name)
    return value


def replace_at(config: ConfigT, changes: Mapping[str, Any], within: str = "") -> ConfigT:
    """The config with the values at dotted paths replaced, all at once; every check runs again on the result.

    `within` is the path of the config itself, for messages.
    """
    inner: dict[str, dict[str, Any]] = {}
    values: dict[str, Any] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        check_field(config, name, within + path)
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            values[name] = value
    for name, nested in inner.items():
        now = config[int(name)] if isinstance(config, tuple) else getattr(config, name)
        values[name] = replace_at(values.get(name, now), nested, f"{within}{name}.")
    if isinstance(config, tuple):
        return tuple(values.get(str(number), item) for number, item in enumerate(config))
    return config.replace(**values)


def check_field(config: Any, name: str, path: str) -> None:
    """Refuse a name that a config, or a number that a tuple of configs, does not have."""
    if isinstance(config, tuple):
        if not name.isdigit() or int(name) >= len(config):
            raise UserError(f"'{path}': '{name}' is no item; expected a number from 0 to {len(config) - 1}")
        return
    if not isinstance(config, Config):
        raise UserError(f"'{path}': {config!r} has no fields")
    names = [field.name for field in dataclasses.fields(config)]
    if name not in names:
        raise UserError(f"'{path}': {type(config).__name__} has no field '{name}'{did_you_mean(name, names)}")


def canonical(config: Any) -> Any:
    """A config as plain JSON data: every field by name, and the class of each part under "kind"."""
    if isinstance(config, Config):
        fields = {field.name: canonical(getattr(config, field.name)) for field in dataclasses.fields(config)}
        return {"kind": qualified_name(type(config))} | fields
    if isinstance(config, tuple):
        return [canonical(item) for item in config]
    if config is None or isinstance(config, bool | int | float | str):
        return config
    raise UserError(f"{config!r} has no canonical form; expected Python numbers, strings, None and configs")


def qualified_name(kind: type) -> str:
    """A class's name; of a class outside the package, with its module, such as "heads.MyAdamW".

    A module loaded from a file counts by the file's name alone: its name is "heads@" and a digest of the path.
    """
    if kind.__module__.partition(".")[0] == "flaxformer":
        return kind.__name__
    return f"{kind.__module__.partition('@')[0]}.{kind.__qualname__}"


def classes_in(config: Any) -> list[type]:
    """The class of a config and of every config in it, each once."""
    if isinstance(config, Config):
        inside = [getattr(config, field.name) for field in dataclasses.fields(config)]
    else:
        inside = list(config) if isinstance(config, tuple) else []
    own = [type(config)] if isinstance(config, Config) else []
    return list(dict.fromkeys([*own, *(kind for item in inside for kind in classes_in(item))]))


def canonical_text(config: Any) -> str:
    """`canonical` as one line of JSON with sorted keys: equal text, equal recipe."""
    return json.dumps(canonical(config), sort_keys=True, ensure_ascii=False)


def flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    """Canonical data as {dotted path: value}."""
    if not isinstance(data, dict):
        return {prefix: data}
    rows: dict[str, Any] = {}
    for name, value in data.items():
        rows |= flatten(value, f"{prefix}.{name}" if prefix else name)
    return rows


def differences(old: Any, new: Any) -> list[str]:
    """Field by field, what two canonical data differ in, as lines `path: old -> new`."""
    before, after = flatten(old), flatten(new)
    paths = [*before, *(path for path in after if path not in before)]
    absent = object()
    shown = lambda rows, path: "(absent)" if rows.get(path, absent) is absent else json.dumps(rows[path])  # noqa: E731
    return [
        f"{path}: {shown(before, path)} -> {shown(after, path)}"
        for path in paths
        if before.get(path, absent) != after.get(path, absent)
    ]
