"""Configs as pytrees: static fields select the compiled program, leaves are numbers that the program reads.

>>> class Smoothing(Config):
...     kind: str = static("uniform", choices=("uniform", "unigram"))   # a new value compiles a new program
...     amount: float | None = leaf(None, at_least=0, below=1)          # a new value reuses the program

`None` switches a feature off. It is part of the tree structure, so the program has no code for that feature.
Two configs with equal `jax.tree.structure` share one compiled function.
"""

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, dataclass_transform, overload

import numpy as np

from flaxformer.core.pytree import Node, holds_array
from flaxformer.system.bounds import BOUNDS, check_number
from flaxformer.system.errors import UserError, did_you_mean, quote

ValueT = TypeVar("ValueT")

REQUIRED = dataclasses.MISSING
LARGEST = 2**63 - 1
MOST_NAMES = 12
"""Largest number of classes that a message lists."""


@overload
def static(*, choices: Collection[str] | None = None, omit_default: bool = False, **bounds: float) -> Any: ...
@overload
def static(
    default: ValueT, *, choices: Collection[str] | None = None, omit_default: bool = False, **bounds: float
) -> ValueT: ...
def static(
    default: object = REQUIRED, *, choices: Collection[str] | None = None, omit_default: bool = False, **bounds: float
) -> object:
    """Declare a field that selects the program, such as a width, a depth or a kind: part of the tree structure.

    Args:
      default: the value if none is given; without it, the field is required.
      choices: the valid strings; None allows any value of the field's type.
      omit_default: True to leave the field out of the canonical form while it has its default: for a field that is
        added to an existing class, so that the identity of earlier results stays the same.
      bounds: limits of a number: at_least, above, at_most, below.
    """
    return _field(default, False, choices, bounds, omit_default)


@overload
def leaf(*, omit_default: bool = False, **bounds: float) -> Any: ...
@overload
def leaf(default: ValueT, *, omit_default: bool = False, **bounds: float) -> ValueT: ...
def leaf(default: object = REQUIRED, *, omit_default: bool = False, **bounds: float) -> object:
    """Declare a number that the program reads and `vmap` may map over; bounds and `omit_default` as in `static`."""
    return _field(default, True, None, bounds, omit_default)


@overload
def part() -> Any: ...
@overload
def part(default: ValueT, *, omit_default: bool = False) -> ValueT: ...
def part(default: object = REQUIRED, *, omit_default: bool = False) -> object:
    """Declare a nested config; `omit_default` as in `static`."""
    return _field(default, True, None, {}, omit_default)


def _field(
    default: object, is_node: bool, choices: Collection[str] | None, bounds: dict[str, float], omit_default: bool
) -> object:
    if unknown := set(bounds) - set(BOUNDS):
        raise TypeError(f"unknown bounds {sorted(unknown)}; expected {', '.join(BOUNDS)}")
    metadata = {"pytree_node": is_node, "choices": choices, "bounds": bounds, "omit_default": omit_default}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Config(Node):
    """Base of every config: a frozen keyword-only dataclass and pytree, checked on construction.

    A class may give predefined values in `named`, so that `model.norm=post` works on the command line.

    Raises:
      UserError: an unknown field, or a value of the wrong type, outside its bounds or not among its choices.
    """

    named: ClassVar[Mapping[str, "Config"]] = {}
    is_abstract: ClassVar[bool] = True
    """True if the class is only a base of other classes; a subclass does not inherit this value."""
    never_stored: ClassVar[tuple[str, ...]] = ()
    """Fields without a place in the canonical form: no file can set them, and they do not change the identity."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__(kw_only=True)
        for field in dataclasses.fields(cls):
            if "pytree_node" not in field.metadata:
                cls.is_abstract = True  # a rejected class remains in its base's __subclasses__
                raise UserError(
                    f"{cls.__name__}.{field.name} is a plain field; expected static(...) for a choice of the program, "
                    "leaf(...) for a number that it reads, part(...) for a config, or ClassVar[...]"
                )
        construct = cls.__init__

        @functools.wraps(construct)
        def __init__(self: Config, *args: object, **values: object) -> None:  # noqa: N807
            fields = dataclasses.fields(cls)
            names = [field.name for field in fields]
            if args:
                raise UserError(
                    f"{cls.__name__} is given {quote(args[0])}; expected fields by name: {', '.join(names)}"
                )
            for name in values:
                if name not in names:
                    raise UserError(f"{cls.__name__} has no field '{name}'{did_you_mean(name, names)}")
            for field in fields:
                if field.name not in values and field.default is field.default_factory is REQUIRED:
                    expected = _type_name(type_hints(cls)[field.name])
                    raise UserError(f"{cls.__name__}.{field.name} is not given; expected {expected}")
            construct(self, **values)

        cls.__init__ = __init__  # type: ignore[assignment, method-assign]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, hint = getattr(self, field.name), type_hints(type(self))[field.name]
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value := value.item())
            if isinstance(value, str) and (named := named_values(hint)):
                if value not in named:
                    raise UserError(
                        f"{type(self).__name__}.{field.name} is {quote(value)}{did_you_mean(value, list(named))}"
                    )
                object.__setattr__(self, field.name, value := named[value])
            if isinstance(value, list):
                object.__setattr__(self, field.name, value := tuple(value))
            if field.metadata.get("pytree_node", True) and holds_array(value):
                continue  # a number of a run on a device, or its tracer
            where = f"{type(self).__name__}.{field.name}"
            is_integer = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
            if is_integer and float in alternatives(hint):
                object.__setattr__(self, field.name, value := float(value))
            _check_type(where, value, hint)
            _check_value(where, value, field.metadata)
        for problem in self.problems():
            raise UserError(problem)

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between fields, naming the field, its value and what was expected."""
        return iter(())


ConfigT = TypeVar("ConfigT", bound=Config)


type_hints: Callable[[type], dict[str, Any]] = functools.cache(typing.get_type_hints)
"""Return the evaluated annotations of a class."""


def alternatives(hint: object) -> tuple[Any, ...]:
    """Return the members of a union type, `int | None` -> (int, NoneType); of another type, the type itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, Union) else (hint,)


def accepts_class(hint: object) -> bool:
    """True if a field of this type accepts a class in place of a config of that class."""
    return any(typing.get_origin(kind) is type for kind in alternatives(hint))


def choices(hint: object) -> dict[str, type[Config]]:
    """Return every concrete config class that a field of this type accepts, by name, including those of the user.

    A class from outside the package is listed twice: by its name, and by its module and name.
    """
    classes: dict[str, type[Config]] = {}
    waiting = _config_classes(hint)
    for kind in waiting:
        waiting += [subclass for subclass in kind.__subclasses__() if subclass not in waiting]
        if not vars(kind).get("is_abstract", False) and not kind.__name__.startswith("_"):
            classes |= {kind.__name__: kind, qualified_name(kind): kind}  # a redefined class replaces the older one
    return classes


def named_values(hint: object) -> dict[str, Config]:
    """Return the predefined values that a field of this type accepts by name; none if the field accepts strings."""
    if str in alternatives(hint):
        return {}
    tables = {id(kind.named): kind.named for kind in [*_config_classes(hint), *choices(hint).values()]}
    return {name: value for table in tables.values() for name, value in table.items()}


def _config_classes(hint: object) -> list[type[Config]]:
    """Return the config classes among the alternatives of a type."""
    return [kind for kind in alternatives(hint) if isinstance(kind, type) and issubclass(kind, Config)]


def _type_name(hint: object) -> str:
    names = []
    for kind in alternatives(hint):
        if typing.get_origin(kind) is type:
            continue  # a class where its instances are listed
        if isinstance(kind, type) and issubclass(kind, Config):
            known = {name: value for name, value in choices(kind).items() if "." not in name}
            sorted_names = sorted(known, key=lambda name: qualified_name(known[name]) != name)  # the package's first
            if not known:
                continue
            only_itself = sorted_names == [kind.__name__]
            listed = sorted_names[:MOST_NAMES] + ["…"] * (len(sorted_names) > MOST_NAMES)
            names.append(kind.__name__ if only_itself else f"{', '.join(listed)} or another {kind.__name__}")
        else:
            names.append("None" if kind is types.NoneType else getattr(kind, "__name__", str(kind)))
    return " or ".join(names)


def _check_type(where: str, value: object, hint: object) -> None:
    for kind in alternatives(hint):
        inner, kind = typing.get_args(kind), typing.get_origin(kind) or kind
        if kind is tuple and isinstance(value, tuple) and inner[-1:] == (...,):
            for number, item in enumerate(value):
                _check_type(f"{where}.{number}", item, inner[0])
            return
        if kind is type and inner:
            if isinstance(value, type) and issubclass(value, inner[0]):
                return
            continue
        if isinstance(value, kind) and not (isinstance(value, bool) and kind in (int, float)):
            return
    value_text = f"the class {value.__name__}" if isinstance(value, type) else quote(value)
    raise UserError(f"{where} is {value_text}; expected {_type_name(hint)}{_as_tuple(value, hint)}")


def _as_tuple(value: object, hint: object) -> str:
    """Return the tuple to write in place of one of its items; empty if a value is no item of a tuple of this type."""
    items = [typing.get_args(kind)[0] for kind in alternatives(hint) if typing.get_origin(kind) is tuple]
    if not any(isinstance(value, kind) for item in items for kind in alternatives(item) if isinstance(kind, type)):
        return ""
    return f": ({type(value).__name__}(...),)" if isinstance(value, Config) else f": ({quote(value)},)"


def _check_value(where: str, value: object, metadata: Mapping[str, Any]) -> None:
    if metadata["choices"] is not None and isinstance(value, str) and value not in metadata["choices"]:
        raise UserError(f"{where} is {quote(value)}{did_you_mean(value, list(metadata['choices']))}")
    if not isinstance(value, bool) and isinstance(value, int | float):
        check_number(where, value, metadata["bounds"])
        if isinstance(value, int) and abs(value) > LARGEST:
            raise UserError(f"{where} is {quote(value)}; expected a number of at most 64 bits")


def qualified_name(kind: type) -> str:
    """Return the name of a class; outside the package, with its module, such as "heads.MyAdamW".

    The module name of a study file ends in "@" and a digest of the file's path; that part is left out. A script that
    Python runs has the name of its file, as if it were loaded.
    """
    if kind.__module__.partition(".")[0] == "flaxformer":
        return kind.__name__
    module = kind.__module__.partition("@")[0]
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if module == "__main__" and file and Path(file).exists():
        module = Path(file).stem
    return f"{module}.{kind.__qualname__}"
