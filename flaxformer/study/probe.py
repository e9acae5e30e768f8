"""Probes: questions that measurements answer without training."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flaxformer.store.declaration import FORMAT, QUANTITY, Declaration, Labels
from flaxformer.study.checks import check_name, check_texts
from flaxformer.study.claim import Claim
from flaxformer.study.declare import Number
from flaxformer.study.identity import measured_by
from flaxformer.study.scaling_claim import declared_claim
from flaxformer.study.seeds import check_seeds
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.user_code import code_digests


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """A question that measurements answer: the function that measures, the seeds, and the claims.

    Args:
      name: name of its folder of results.
      question: one sentence; the first line of the report.
      measure: function of a seed that returns named numbers (Python numbers or scalar arrays); a claim refers to one as
        {"quantity": NAME}.
      seeds: seeds of independent draws.
      exact: True if the numbers do not depend on the seed (operations, ranks, exact zeros): one seed is enough, and the
        interval is a point.
      claims: tested together, with Holm's correction.
      caveats: limits of the probe, which the report repeats.
      unit: common unit of the numbers.
      file: the file that declares it, set when it is loaded.
    """

    name: str
    question: str
    measure: Callable[[int], Mapping[str, Number]]
    seeds: Sequence[int] = range(5)
    exact: bool = False
    claims: Sequence[Claim] = ()
    caveats: Sequence[str] = ()
    unit: str = ""
    file: Path | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        check_name(self.name)
        check_texts(self.question, self.caveats, self.unit)
        check_seeds(self.seeds)
        for claim in self.claims:
            claim.contrast(self._refuse_arm)

    def _refuse_arm(self, labels: Labels) -> Labels:
        raise UserError(f"probe '{self.name}' has a claim about {labels}; expected {{'{QUANTITY}': NAME}}")

    def declaration(self) -> Declaration:
        """Return what the probe declares."""
        code = code_digests([self.measure], self.file)
        contrasts = [claim.contrast(self._refuse_arm) for claim in self.claims]
        return Declaration(
            format=FORMAT,
            kind="probe",
            name=self.name,
            question=self.question,
            metric="value",
            unit=self.unit,
            exact=self.exact,
            seeds=tuple(self.seeds),
            claims=tuple(declared_claim(*pair, self.unit) for pair in zip(self.claims, contrasts, strict=True)),
            caveats=tuple(self.caveats),
            measured_by=measured_by(code),
            code=code,
        )


def check_quantities(claims: Sequence[Claim], values: Mapping[str, float]) -> None:
    """Raise UserError if a claim refers to a quantity without a value."""
    for claim in claims:
        for labels in (claim.first, claim.second):
            name = labels.get(QUANTITY) if isinstance(labels, dict) else None
            if name is not None and name not in values:
                raise UserError(f"claim '{claim.text}' names the quantity '{name}'{did_you_mean(name, list(values))}")
