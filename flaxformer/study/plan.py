"""Planning: which cells share a program, what is already done, what the rest will cost."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import flaxformer
from flaxformer import model, params
from flaxformer.struct import canonical
from flaxformer.study.declare import Cell, Study
from flaxformer.training import Run, start, train_step


@dataclasses.dataclass(frozen=True)
class Group:
    """Cells whose runs have one tree structure, and so one program, differing in numbers alone."""

    name: str
    cells: tuple[Cell, ...]
    size: int
    """How many cells the whole group has, also when `cells` are only those that are missing."""

    @property
    def example(self) -> Run:
        """A member, for everything that all members share: shapes, steps, data."""
        return self.cells[0].run


def groups(cells: Sequence[Cell]) -> list[Group]:
    """Cells by the tree structure of their runs, in the order of first appearance."""
    members: dict[Any, list[Cell]] = {}
    for cell in cells:
        members.setdefault(jax.tree.structure(cell.run), []).append(cell)
    return [Group(_group_name(own, cells), tuple(own), len(own)) for own in members.values()]


def _group_name(own: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """The labels that tell this group from the others, made safe for a file name, and a digest of its structure."""
    labels = own[0].arm.labels
    shared = {name: label for name, label in labels.items() if all(cell.arm.labels[name] == label for cell in own)}
    telling = [f"{n}={v}" for n, v in shared.items() if any(cell.arm.labels[n] != v for cell in cells)]
    safe = "".join(c if c.isalnum() or c in "=,._-" else "_" for c in ",".join(telling) or "all")
    structure = str(jax.tree.structure(own[0].run))
    return f"{safe[:80]}-{hashlib.blake2b(structure.encode(), digest_size=4).hexdigest()}"


def recipe(cell: Cell, data: dict[str, Any]) -> dict[str, Any]:
    """All that decides a cell's numbers, but for its seed: the config, the data, and the package's semantics."""
    run = {name: value for name, value in canonical(cell.arm.run).items() if name != "seed"}
    return {"semantics": flaxformer.SEMANTICS, "data": data, "run": run}


def fingerprint(cell: Cell, data: dict[str, Any]) -> str:
    """A cell's identity in 16 hexadecimal digits."""
    text = json.dumps([recipe(cell, data), cell.seed], sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def declaration(study: Study) -> dict[str, Any]:
    """The study as plain data: everything that resuming and reporting need, without the study's file."""
    cells = study.cells()
    data = {task: task.fingerprint() for task in {arm.run.task for arm in study.arms()}}
    claims = [
        {"text": claim.text, "kind": claim.kind, "by": claim.by, "within": claim.within, "contrast": contrast}
        for claim, contrast in zip(study.claims, study.contrasts(), strict=True)
    ]
    return {
        "format": 1,
        "name": study.name,
        "question": study.question,
        "metric": study.metric,
        "unit": study.unit,
        "axes": [
            {
                "name": axis.name,
                "path": ", ".join(axis.paths),
                "labels": study.labels(axis),
                "baseline": study.baseline_label(axis),
            }
            for axis in study.axes
        ],
        "seeds": list(study.seeds),
        "claims": claims,
        "caveats": list(study.caveats),
        "references": study.baseline.task.references(),
        "parameters": params.count(model.specs(study.baseline.model)),
        "cells": [
            {
                "cell": cell.name,
                "labels": cell.arm.labels,
                "seed": cell.seed,
                "fingerprint": fingerprint(cell, data[cell.arm.run.task]),
            }
            for cell in cells
        ],
        "recipes": {cell.arm.name: recipe(cell, data[cell.arm.run.task]) for cell in cells},
    }


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one group will take, read off the compiled training step and a few timed calls of it."""

    parameters: int
    flops_per_step: float
    bytes_per_member: int
    seconds_per_step: float
    compile_seconds: float

    def seconds(self, group: Group, devices: int) -> float:
        """Estimated seconds for the group on this many devices."""
        work = self.seconds_per_step * group.example.training.steps * len(group.cells)
        return self.compile_seconds + work / min(devices, len(group.cells))


def cost(group: Group, timed_steps: int = 5) -> Cost:
    """Compile one training step of one member and time it."""
    run = jax.tree.map(jnp.asarray, group.example)
    state, source = start(run), run.task.load()
    batch = source.batch(jax.random.key(0), 0)
    begin = time.perf_counter()
    step = jax.jit(train_step).lower(state, run, batch).compile()
    compiled = time.perf_counter()
    state, _ = step(state, run, batch)
    jax.block_until_ready(state)
    warm = time.perf_counter()
    for _ in range(timed_steps):
        state, _ = step(state, run, batch)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - warm) / timed_steps
    memory, analysis = step.memory_analysis(), step.cost_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes if memory else 0
    flops = float((analysis or {}).get("flops", 0))
    return Cost(params.count(model.specs(group.example.model)), flops, used, seconds, compiled - begin)
