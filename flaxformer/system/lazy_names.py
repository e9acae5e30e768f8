"""Public names of a package whose modules are imported when a name is first asked for."""

import importlib
from collections.abc import Callable, Mapping, Sequence


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package, which imports a name from its module.

    Modules of the package that need no JAX can then be imported without it.

    Args:
      package: name of the package.
      names: public names by the module that defines them.
    """
    modules = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return get
