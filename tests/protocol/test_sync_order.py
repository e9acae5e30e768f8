"""Order of system calls: data are flushed before a file gets its name, and names before a result is acknowledged."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from protocol import simulated_study as study
from protocol.simulated_study import TRIALS, worker
from protocol.simulated_world import STORE, World

GROUPS = f"{STORE}/groups"


@pytest.fixture(scope="module")
def calls():
    """Calls that change something, in the order of a whole study; "acknowledge" where a row is acknowledged."""
    world, found = World(), []
    world.watch = lambda process, name, path: found.append((name, path))
    with world.patched(), study.patched(world, lambda row: found.append(("acknowledge", row.trial))):
        world.run(world.start(worker()))
    return found


def check_order(calls):
    """Check a sequence of (call, path): nothing gets its name, and nothing is removed, before it is on the disk."""
    dirty, unnamed, rows = set(), set(), set()
    for name, path in calls:
        if name == "write":
            dirty.add(path)
            rows |= {path} if re.search(r"/groups/[^/]*\.jsonl$", path) else set()
        elif name == "create":
            unnamed.add(path)
        elif name == "fsync":
            dirty.discard(path)
            unnamed = {one for one in unnamed if one.rpartition("/")[0] != path}
        elif name == "rename":
            source, target = path.split(" ")
            assert source not in dirty, f"{target} is named before its content is flushed"
            unnamed.add(f"{source.rpartition(chr(47))[0]}/{target.rpartition(chr(47))[2]}")
        elif name == "unlink":
            tables = [one for one in unnamed if one.endswith(".parquet")]
            assert not tables, f"{path} is removed before {tables} is flushed"
        elif name == "acknowledge":
            late = [one for one in dirty | unnamed if any(f"{row}/".startswith(f"{one}/") for row in rows)]
            assert not late, f"a row is acknowledged before {late} are flushed"


def created(calls):
    """The calls, with "create" where a new name appears, and without those that open what exists."""
    names = set()
    for name, path in calls:
        if name in ("create", "mkdir"):
            if path not in names:
                names.add(path)
                yield "create", path
        else:
            if name == "unlink":
                names.discard(path)
            yield name, path


def test_rows_are_flushed_before_they_are_acknowledged(calls):
    assert sum(name == "acknowledge" for name, _ in calls) == len(TRIALS)
    check_order(created(calls))


@pytest.mark.parametrize("left_out", [STORE, GROUPS, ".jsonl", ".tmp"])
def test_a_missing_flush_is_found(calls, left_out):
    def is_left_out(name, path):
        return name == "fsync" and (path == left_out or (left_out[0] == "." and path.endswith(left_out)))

    fewer = [(name, path) for name, path in calls if not is_left_out(name, path)]
    assert len(fewer) < len(calls)
    with pytest.raises(AssertionError, match="before"):
        check_order(created(fewer))


PROGRAM = """
import sys
from pathlib import Path
from flaxformer.store.rows import Row
from flaxformer.store.store import Store

store = Store(Path(sys.argv[1]), worker="0123456789ab")
with store.locked():
    pass
for seed in range(3):
    store.append("g", Row(trial=f"a,seed={seed}", group="g", seed=seed, status="done", metrics={"loss": 1.0}))
    print("acknowledge", seed, flush=True)
with store.locked():
    store.finish("g")
"""
LINE = re.compile(r"(?:\[pid\s+\d+\] |\d+ +)?(\w+)\((.*)\)\s+= (-?\d+)")


def traced(text, root):
    """The calls of a trace of strace -y that change files below a folder, as `check_order` takes them."""
    for name, words, result in LINE.findall(text):
        if name == "write" and "acknowledge" in words:
            yield "acknowledge", words
        paths = [one for one in re.findall(r'"([^"]*)"|<([^>]*)>', words) for one in one if one.startswith(root)]
        if not paths or int(result) < 0:
            continue
        if name == "openat" and "O_CREAT" in words:
            yield "create", paths[-1]
        elif name in ("mkdir", "mkdirat"):
            yield "mkdir", paths[-1]
        elif name in ("write", "fsync"):
            yield name, paths[0]
        elif name in ("rename", "renameat", "renameat2"):
            yield "rename", " ".join(paths[-2:])
        elif name in ("unlink", "unlinkat"):
            yield "unlink", paths[-1]


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_real_system_calls_are_in_this_order(tmp_path):
    root, trace = tmp_path / "study", tmp_path / "trace"
    watched = "trace=openat,mkdir,mkdirat,write,fsync,rename,renameat,renameat2,unlink,unlinkat"
    done = subprocess.run(
        ["strace", "-f", "-y", "-s", "99", "-e", watched, "-o", trace, sys.executable, "-c", PROGRAM, root],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    found = list(traced(trace.read_text(), str(tmp_path)))
    assert [name for name, _ in found].count("acknowledge") == 3
    assert {"create", "mkdir", "write", "fsync", "rename", "unlink"} <= {name for name, _ in found}
    check_order(created(found))
    assert [path.name for path in (root / "groups").iterdir()] == ["g.parquet"]
