"""Imports point downward: a module imports only from lower layers of the package map, and from its own package."""

import ast
import functools
import graphlib
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flaxformer

ROOT = Path(flaxformer.__file__).parent
LAYERS = [
    ["system", "core"],
    ["nn", "statistics", "devices"],
    ["components"],
    ["config"],
    ["model"],
    ["data", "tasks"],
    ["training", "store", "catalog"],
    ["checkpoint", "targets", "diagnostics", "interpret", "interop", "laws", "study"],
    ["analysis", "runner", "report", "ledger"],
    ["jobs", "claims", "bench", "cli"],
]
"""Packages in the order in which they may be imported: from a lower layer, or from the left in the same one."""
MODULES = sorted(ROOT.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flaxformer":
            inner = node.module.removeprefix("flaxformer").removeprefix(".")
            for alias in node.names:
                name = f"{inner}.{alias.name}".strip(".")
                is_module = (ROOT / name.replace(".", "/")).with_suffix(".py").exists() or (ROOT / name).is_dir()
                found.add(name if is_module and name else inner)
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("flaxformer")}
    return found - {""}


def place(module: str) -> int:
    """Return the place of a module's package in the order of imports."""
    return [package for layer in LAYERS for package in layer].index(module.split(".")[0])


def test_imports_point_downward():
    for importing, path in [(name, path) for path in MODULES if (name := module_name(path))]:
        for imported in imports(path):
            assert place(imported) <= place(importing), f"{importing} imports {imported}"


def test_no_modules_import_each_other():
    """Within a package too: the imports of all modules have an order. A package's own file may import all of it."""
    graph = {module_name(path): imports(path) for path in MODULES}
    packages = {name for name in graph if (ROOT / name.replace(".", "/")).is_dir()}
    order = graphlib.TopologicalSorter({name: found - packages for name, found in graph.items()})
    assert list(order.static_order())


def test_the_package_has_at_most_30_names_and_ten_layers():
    names = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"} - {"experiments"}
    assert {package for layer in LAYERS for package in layer} == names - {"__init__.py", "py.typed"}
    assert len(names) <= 30
    assert len(LAYERS) <= 10


@pytest.mark.parametrize("page", ["docs/inside.md", "CONTRIBUTING.md"])
def test_pages_show_the_same_layers(page):
    rows = re.findall(r"^\| (\d+) \| ((?:`\w+/`,? ?)+)\|", (ROOT.parent / page).read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(LAYERS) + 1))
    assert [re.findall(r"\w+", packages) for _, packages in rows] == LAYERS


def test_packages_begin_with_a_line_that_says_their_idea():
    for package in itertools.chain(*LAYERS):
        assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())), package


def test_imports_are_found():
    assert {"core.struct", "core.params", "nn.masks"} <= imports(ROOT / "config" / "model.py")
    assert "study.declare" in imports(ROOT / "cli" / "study.py")


def test_test_files_have_distinct_names():
    """pytest imports them by their names alone, except conftest.py."""
    names = [path.name for path in ROOT.parent.glob("tests/*/*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def lines_beside_imports(path: Path) -> int:
    text = path.read_text()
    statements = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return len(text.splitlines()) - sum(node.end_lineno - node.lineno + 1 for node in statements)


def test_files_have_at_most_295_lines_beside_their_imports():
    assert [module_name(path) for path in MODULES if lines_beside_imports(path) > 295] == []


def test_nn_does_not_import_configs():
    assert not any(
        "config" in name or "struct" in name for path in (ROOT / "nn").glob("*.py") for name in imports(path)
    )


@pytest.mark.long
def test_no_import_starts_jax():
    """The number of devices of a CPU and the processes of a cluster are set after imports, and before JAX starts."""
    names = sorted(name for path in MODULES if (name := module_name(path)) and not name.endswith("__main__"))
    code = (
        "import importlib, sys, jax\n"
        "for number, name in enumerate(sys.argv[1:]):\n"
        "    importlib.import_module(f'flaxformer.{name}')\n"
        "    try:\n"
        "        jax.config.update('jax_num_cpu_devices', 2 + number % 2)  # refused after JAX has started\n"
        "    except RuntimeError:\n"
        "        sys.exit(name)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


def asserts(node: ast.AST) -> bool:
    """True if a syntax tree has an assert statement or calls an asserting function."""
    names = [getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node)]
    known = any(re.match(r"assert_|raises$|equal$|close$|refused$", name) for name in names if isinstance(name, str))
    return known or any(isinstance(n, ast.Assert) for n in ast.walk(node))


def without_an_assertion(path: Path) -> list[str]:
    """Return the names of the tests of a file that neither assert nor call a helper of the file that does."""
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    helpers = {f.name for f in functions if not f.name.startswith("test_") and asserts(f)}
    return [
        f"{path.name}::{test.name}"
        for test in functions
        if test.name.startswith("test_")
        and not asserts(test)
        and not helpers & {getattr(n.func, "id", "") for n in ast.walk(test) if isinstance(n, ast.Call)}
    ]


def test_every_test_can_fail():
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    assert [name for path in files for name in without_an_assertion(path)] == []


def test_a_star_import_gives_every_public_name():
    names: dict[str, object] = {}
    exec("from flaxformer import *", names)
    assert {"Study", "Run", "Attention", "Records", "run", "load"} <= names.keys()
