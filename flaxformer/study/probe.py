"""A probe: a question that measurements answer without a training run."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flaxformer
from flaxformer.files import digest_of
from flaxformer.store.store import FORMAT
from flaxformer.struct import UserError, did_you_mean
from flaxformer.study.claim import QUANTITY, Claim
from flaxformer.study.declare import check_name, check_seeds
from flaxformer.user_code import code_digests


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
      file: the file that declares it, set when it is loaded.
    """

    name: str
    question: str
    measure: Callable[[int], Mapping[str, Any]]
    seeds: Sequence[int] = range(5)
    exact: bool = False
    claims: Sequence[Claim] = ()
    caveats: Sequence[str] = ()
    unit: str = ""
    file: Path | None = None

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
        code = code_digests([self.measure], self.file)
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
            "trials": [],
            "recipes": {},
            "measured_by": measured_by(code),
            "code": code,
        }


def measured_by(code: Mapping[str, str]) -> str:
    """A digest of what tells a measurement from another: the package's semantics, and the user code behind it."""
    return digest_of(json.dumps([flaxformer.SEMANTICS, code], sort_keys=True).encode())


def check_quantities(claims: Sequence[Claim], values: Mapping[str, float]) -> None:
    """Refuse a claim about a number that is not there."""
    for claim in claims:
        for labels in (claim.first, claim.second):
            name = labels.get(QUANTITY) if isinstance(labels, dict) else None
            if name is not None and name not in values:
                raise UserError(f"claim '{claim.text}' names the quantity '{name}'{did_you_mean(name, list(values))}")
