"""The declaration in the file of a benchmark. Imports the standard library only."""

import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from flaxformer.bench.declare import Benchmark
from flaxformer.bench.suite import Suite


def read(file: Path) -> Benchmark | Suite:
    """Execute a file and return its `benchmark`; modules beside the file can be imported from then on.

    Raises:
      AttributeError: the file defines no `benchmark`.
      Exception: any error that the file raises.
    """
    spec = importlib.util.spec_from_file_location(f"benchmark_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"'{file}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    folder = file.resolve().parent
    with _own_modules(folder):
        spec.loader.exec_module(module)
    sys.path.append(str(folder))
    benchmark: Benchmark | Suite = module.benchmark
    return dataclasses.replace(benchmark, name=file.stem)


@contextlib.contextmanager
def _own_modules(folder: Path) -> Iterator[None]:
    """Within, the modules of a folder are found before others of the same names, imported already or on the path."""
    names = {path.stem for path in folder.glob("*.py")}
    replaced = {}
    for name in names & sys.modules.keys():
        module_file = getattr(sys.modules[name], "__file__", None)
        if module_file is None or Path(module_file).resolve().parent != folder:
            replaced[name] = sys.modules.pop(name)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.update(replaced)
