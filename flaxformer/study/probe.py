"""A probe: a question that measurements answer without a training run."""

import ast
import dataclasses
import hashlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flaxformer
from flaxformer.struct import UserError, did_you_mean
from flaxformer.study.claim import QUANTITY, Claim
from flaxformer.study.declare import check_name, check_seeds
from flaxformer.study.store import FORMAT, Row, Store


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """A question that measurements answer: what to measure, over which seeds, and what is claimed.

    Args:
      name: the name of its folder of results.
      question: one sentence; the first line of the report.
      measure: from a seed to named numbers (Python or scalar arrays); claims call them {"quantity": NAME}.
      seeds: each is one independent draw.
      exact: the numbers are facts of the program (operations, ranks, exact zeros), the same for every seed: one seed
        is enough, and the interval is a point.
      claims: judged together, with Holm's correction.
      caveats: what the probe does not show; the report says so.
      unit: what the numbers count, where they all count the same.
    """

    name: str
    question: str
    measure: Callable[[int], Mapping[str, Any]]
    seeds: Sequence[int] = range(5)
    exact: bool = False
    claims: Sequence[Claim] = ()
    caveats: Sequence[str] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        for name in ("seeds", "claims", "caveats"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_name(self.name)
        check_seeds(self.seeds)
        for claim in self.claims:
            claim.contrast(self._quantities_alone)

    def _quantities_alone(self, labels: Mapping[str, str]) -> Any:
        raise UserError(f"probe '{self.name}' has a claim about {labels}; expected {{'{QUANTITY}': NAME}}")

    def declaration(self) -> dict[str, Any]:
        """The probe as plain data, in the form that a study has."""
        claims = [dataclasses.asdict(c.contrast(self._quantities_alone)) for c in self.claims]
        return {
            "format": FORMAT,
            "kind": "probe",
            "name": self.name,
            "question": self.question,
            "metric": "value",
            "unit": self.unit,
            "exact": self.exact,
            "axes": [],
            "seeds": list(self.seeds),
            "claims": [
                {"text": c.text, "kind": c.kind, "by": c.by, "within": c.within, "unit": self.unit} | contrast
                for c, contrast in zip(self.claims, claims, strict=True)
            ],
            "caveats": list(self.caveats),
            "references": {},
            "cells": [],
            "recipes": {},
            "measured_by": measured_by(self.measure),
        }


def measured_by(measure: Callable[..., Any]) -> str:
    """What tells a measurement from another: the package's semantics, and the code of the file that it is written in.

    Comments, docstrings and layout do not count.
    """
    tree = ast.parse(inspect.getsource(inspect.getmodule(measure) or measure))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.blake2b(f"{flaxformer.SEMANTICS} {ast.dump(tree)}".encode(), digest_size=8).hexdigest()


def run_probe(probe: Probe, store: Store) -> Iterator[Row]:
    """Measure every seed that is missing; each is on disk before it is yielded.

    Measurements that other code made stay in the folder and are not read.

    Raises:
      UserError: another process holds the folder, or a claim is about a number that is not measured.
    """
    with store.locked():
        declaration = probe.declaration()
        store.declare(declaration)
        store.repair()
        done = {row["seed"] for row in store.measurements(declaration)}
        for seed in probe.seeds:
            if seed in done:
                continue
            began = time.perf_counter()
            values = {name: float(value) for name, value in probe.measure(seed).items()}
            check_quantities(probe.claims, values)
            seconds = time.perf_counter() - began
            row = {"measured_by": declaration["measured_by"], "seed": seed, "seconds": seconds, "values": values}
            store.append_measurement(row)
            yield row


def check_quantities(claims: Sequence[Claim], values: Mapping[str, float]) -> None:
    """Refuse a claim about a number that is not there."""
    for claim in claims:
        for labels in (claim.first, claim.second):
            name = labels.get(QUANTITY) if isinstance(labels, dict) else None
            if name is not None and name not in values:
                raise UserError(f"claim '{claim.text}' names the quantity '{name}'{did_you_mean(name, list(values))}")
