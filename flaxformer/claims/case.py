"""A case: one claim of the founding texts, and the probes and studies that decide it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flaxformer.struct import UserError, did_you_mean
from flaxformer.study.declare import Study
from flaxformer.study.load import load
from flaxformer.study.probe import Probe

Evidence = Probe | Study


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One claim, and the evidence for or against it.

    Args:
      claim: what a text says, in our own words; where it needs a correction, the evidence tests both forms.
      source: which text, and where in it; and the paper behind it.
      evidence: the probes and studies that decide it, each with its own verdict rules.
      quick: weaker evidence for a first look; the probes of `evidence` by default.
      name: the file's name, such as "01_dot_products"; filled in when the file is read.
    """

    claim: str
    source: str
    evidence: Sequence[Evidence]
    quick: Sequence[Evidence] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.quick is None:
            object.__setattr__(self, "quick", [one for one in self.evidence if isinstance(one, Probe)])
        for form in ("evidence", "quick"):
            names = [one.name for one in getattr(self, form)]
            if len(set(names)) < len(names):
                raise UserError(f"{form} is named {names}; expected different names (each has a folder)")
            if not any(one.claims for one in getattr(self, form)):
                raise UserError(f"{form} claims nothing; expected a probe or a study with a Claim")

    @property
    def number(self) -> int:
        """Its place in the list of claims."""
        return int(self.name.partition("_")[0])


def find_cases(folder: Path, names: Sequence[str] = ()) -> list[Case]:
    """The cases of a folder's files NN_NAME.py, or those named by number or name, in the order of their numbers.

    Raises:
      UserError: no such folder or case, or an error in a file.
    """
    files = sorted(folder.glob("[0-9]*_*.py"))
    if not files:
        raise UserError(f"'{folder}' holds no claims; expected a folder of files such as 01_dot_products.py")
    if names:
        chosen = {_named(name, files) for name in names}
        files = [file for file in files if file in chosen]
    return [_of_file(load(file, "case", Case), file) for file in files]


def _of_file(case: Case, file: Path) -> Case:
    """A case with its name, and its evidence with the file that declares it."""
    evidence, quick = ([dataclasses.replace(e, file=file) for e in form] for form in (case.evidence, case.quick or ()))
    return dataclasses.replace(case, name=file.stem, evidence=evidence, quick=quick)


def _named(name: str, files: Sequence[Path]) -> Path:
    """The file of a claim that is called by its number, its name, or both."""
    for file in files:
        number, _, rest = file.stem.partition("_")
        if name in (file.stem, rest, file.name) or (name.isdigit() and int(name) == int(number)):
            return file
    known = [file.stem.partition("_")[2] for file in files]
    raise UserError(f"no claim is called '{name}'{did_you_mean(name, known)}")
