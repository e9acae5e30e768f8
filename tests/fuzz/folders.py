"""Hostile folders, drawn from a seed: results and jobs of others with wrong types, foreign texts, links and damage."""

import copy
import dataclasses
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from fuzz.invocations import TEXTS, Invocation
from fuzz.observe import CANARY

from flaxformer.system import digests

VALUES = [None, True, -1, 0, 10**30, 1.5, -1e308, "", CANARY, [], {}, [[]], {"x": 1}, [None], ["x"], [1, 2], *TEXTS]
COMMANDS = [["status"], ["status", "--json"], ["report"], ["compare"], ["replicate"], ["verify"]]
COMMANDS += [["replicate", "--trust-code"], ["verify", "--trust-code"]]
STUDY_FILES = [
    *(f"{name}.jsonl" for name in ("declarations", "launches", "measurements", "disagreements")),
    *("study.json", "groups", "groups/all.parquet", "groups/all.jsonl", "leases", "unfinished", "figures", "code"),
    *("results.md", "report.html", "results.tex", "results.parquet", "superseded", "declarations.head", ".lock"),
]
JOB_FILES = ["config.json", "log.jsonl", "code", "steps", ".lock"]


@dataclasses.dataclass(frozen=True)
class Hostile:
    """A command on a hostile folder, and what was done to the folder."""

    invocation: Invocation
    what: str


def paths_in(data: object, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every part of plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from paths_in(value, (*path, key))


def mutate(rng: random.Random, data: digests.JsonObject) -> tuple[digests.JsonObject, str]:
    """Return plain data with one part replaced, removed or renamed."""
    data = copy.deepcopy(data)
    path = rng.choice([one for one in paths_in(data) if "recipes" not in one[:1] or rng.random() < 0.05])
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    action = rng.choice(["replace", "replace", "replace", "remove", "rename"])
    value = rng.choice(VALUES)
    if action == "replace" or isinstance(parent, list):
        parent[path[-1]] = value
    elif action == "remove":
        del parent[path[-1]]
    else:
        parent[str(rng.choice(TEXTS))] = parent.pop(path[-1])
    return data, f"{action} {path} by {value!r:.40}"


def _document(rng: random.Random, path: Path) -> str:
    try:
        if not path.is_file():
            return "damaged already"
        data, what = mutate(rng, digests.read_document(path))
    except (OSError, digests.DamagedError):
        return "damaged already"
    path.unlink()
    digests.write_document(path, data)
    return what


def _lines(rng: random.Random, path: Path) -> str:
    rows = (digests.lines(path)[0] if path.is_file() else []) or [{"x": 1}]
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        return "damaged already"
    number = rng.randrange(len(rows))
    rows[number], what = mutate(rng, rows[number])
    path.write_bytes(b"".join(map(digests.line, rows)))
    return what


def _bytes(rng: random.Random, path: Path) -> str:
    data = bytearray(path.read_bytes()) or bytearray(b"x")
    kind = rng.choice(["flip", "cut", "random", "empty", "nul"])
    if kind == "flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        data = data[: rng.randrange(len(data))]
    else:
        data = bytearray({"random": rng.randbytes(200), "empty": b"", "nul": bytes(99)}[kind])
    path.write_bytes(bytes(data))
    return kind


def _other_kind(rng: random.Random, path: Path, outside: Path) -> str:
    """Replace a file or folder by one of another kind, or by a link out of the folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    kind = rng.choice(
        ["file", "folder", "link to a file", "link to a folder", "dangling link", "loop", "pipe", "nothing"]
    )
    if kind == "file":
        path.write_bytes(b"x")
    elif kind == "folder":
        path.mkdir()
        (path / "x").write_bytes(b"x")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "nothing":
        target = {"link to a file": outside / "victim", "link to a folder": outside, "loop": path}
        path.symlink_to(target.get(kind, outside / "none"))
    return kind


def damage_study(rng: random.Random, folder: Path, outside: Path) -> str:
    """Change a folder of results; returns what was done."""
    kind = rng.choice(["document", "document", "document", "lines", "rows", "bytes", "kind", "kind"])
    if kind == "document":
        return f"study.json: {_document(rng, folder / 'study.json')}"
    if kind in ("lines", "rows"):
        names = ["declarations.jsonl", "launches.jsonl", "measurements.jsonl", "disagreements.jsonl"]
        name = rng.choice(names) if kind == "lines" else "groups/all.jsonl"
        return f"{name}: {_lines(rng, folder / name)}"
    name = rng.choice(STUDY_FILES)
    if kind == "bytes":
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        path = rng.choice(files)
        return f"{path.relative_to(folder)}: {_bytes(rng, path)}"
    return f"{name}: {_other_kind(rng, folder / name, outside)}"


def draw_study(seed: int, number: int, folder: Path, outside: Path) -> Hostile:
    """Damage the folder `results` in a folder, and draw a command on it."""
    rng = random.Random(f"folder {seed}/{number}")
    what = "; ".join(damage_study(rng, folder / "results", outside) for _ in range(rng.choice([1, 1, 2])))
    command, *options = rng.choice(COMMANDS)
    words = [command, "results", *(["sound"] if command == "compare" else []), *options]
    return Hostile(Invocation(words, (0, 1, 2)), what)


def draw_job(seed: int, number: int, folder: Path, outside: Path) -> Hostile:
    """Damage the folder `job` of a training run, and draw a command on it."""
    rng = random.Random(f"job {seed}/{number}")
    job = folder / "job"
    files = [path for path in sorted(job.rglob("*")) if path.is_file()]
    kind = rng.choice(["config", "log", "bytes", "kind"])
    if kind == "config":
        what = f"config.json: {_document(rng, job / 'config.json')}"
    elif kind == "log":
        what = f"log.jsonl: {_lines(rng, job / 'log.jsonl')}"
    elif kind == "bytes":
        path = rng.choice(files)
        what = f"{path.relative_to(job)}: {_bytes(rng, path)}"
    else:
        path = rng.choice(
            [*files, *(path for path in sorted(job.rglob("*")) if path.is_dir()), *(job / n for n in JOB_FILES)]
        )
        what = f"{path.relative_to(job)}: {_other_kind(rng, path, outside)}"
    words = {
        "generate": ["generate", "job", "--tokens", "2", "--prompt", "to"],
        "train": ["train", "job.py", "--output", "job", "--samples", "0"],
        "compare": ["compare", *rng.choice([("job", "job"), ("job", "results"), ("sound_job", "job")])],
    }
    return Hostile(Invocation(words[rng.choice(["generate"] * 5 + ["train"] + ["compare"] * 2)], (0, 2)), what)
