"""The declaration in the file of a benchmark. Imports the standard library only."""

import dataclasses
import importlib.util
import sys
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
    sys.path.append(str(file.resolve().parent))
    spec.loader.exec_module(module)
    found: Benchmark | Suite = module.benchmark
    return dataclasses.replace(found, name=file.stem)
