"""One way to write a file: `files.replacing` for whole files and `digests.append_line` for lines."""

import ast
from pathlib import Path

import pytest

import flaxformer

ROOT = Path(flaxformer.__file__).parent
ALLOWED = {
    "system/files.py": "the one way for whole files, and locks",
    "store/leases.py": "a lease is created exclusively",
    "data/prepare.py": "the folder is written under another name, and renamed when it is whole",
    "cli/mistakes.py": "the null device, once the reader of the output is gone",
    "cli/new.py": "a new file is created exclusively",
    "bench/child.py": "a temporary file between two processes",
    "cli/child_process.py": "a temporary file with the errors of a process",
}
"""Files that write by other means, and why."""
METHODS, LIBRARIES = {"savez", "save", "savez_compressed", "dump"}, {"np", "numpy", "json", "pickle"}


def writes(tree):
    """Return the lines of calls that open a file to write it, or write one."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        texts = [one.value for one in [*node.args, *(k.value for k in node.keywords)] if isinstance(one, ast.Constant)]
        modes = [one for one in texts if isinstance(one, str) and set(one) <= set("wabxr+t") and set(one) & set("wax+")]
        is_write = name in ("write_text", "write_bytes") or (name in METHODS and owner in LIBRARIES)
        is_open = name == "open" and (modes or "O_WRONLY" in ast.unparse(node) or "O_RDWR" in ast.unparse(node))
        if is_write or is_open:
            found.append(node.lineno)
    return found


def test_files_are_written_in_one_way():
    paths = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
    lines = {
        name: writes(ast.parse(path.read_text()))
        for name, path in paths.items()
        if name not in ALLOWED and not name.startswith("experiments/")
    }
    assert {name: places for name, places in lines.items() if places} == {}


def test_every_exception_is_needed():
    for path in ALLOWED:
        assert writes(ast.parse((ROOT / path).read_text())), path


@pytest.mark.parametrize(
    "text", ["p.write_text('x')", "open(p, 'w')", "p.open('ab')", "np.save(p, x)", "os.open(p, os.O_RDWR)"]
)
def test_other_ways_are_found(text):
    assert writes(ast.parse(text)) == [1]
