"""Case: one claim of the founding texts, with the probes and studies that decide it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flaxformer.study.declare import Study
from flaxformer.study.load import load
from flaxformer.study.probe import Probe
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.python_files import find_experiment

Evidence = Probe | Study


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One claim with the evidence for or against it.

    Args:
      claim: statement of a text, in our own words; if it needs a correction, the evidence tests both forms.
      source: the text and the place in it, and the paper behind it.
      evidence: the probes and studies that decide it, each with its own verdict rules.
      quick: weaker evidence for a first look; the probes of `evidence` by default.
      name: name of the file, such as "01_dot_products"; filled in when the file is read.
    """

    claim: str
    source: str
    evidence: Sequence[Evidence]
    quick: Sequence[Evidence] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        check_arguments(self)
        if self.quick is None:
            object.__setattr__(self, "quick", [piece for piece in self.evidence if isinstance(piece, Probe)])
        for form in ("evidence", "quick"):
            names = [piece.name for piece in getattr(self, form)]
            if len(set(names)) < len(names):
                raise UserError(f"{form} is named {names}; expected different names (each has a folder)")
            if not any(piece.claims for piece in getattr(self, form)):
                raise UserError(f"{form} claims nothing; expected a probe or a study with a Claim")

    @property
    def number(self) -> int:
        """Number of the claim: the first part of the name."""
        return int(self.name.partition("_")[0])


def find_cases(folder: Path, names: Sequence[str] = ()) -> list[Case]:
    """Return the cases in the files NN_NAME.py of a folder, all or those of the given numbers or names, by number.

    Raises:
      UserError: the folder has no such files, no case has a given name, or a file raises an error.
    """
    files = sorted(find_experiment(folder).glob("[0-9]*_*.py"))
    if not files:
        raise UserError(f"'{folder}' holds no claims; expected a folder of files such as 01_dot_products.py")
    if names:
        chosen = {_find(name, files) for name in names}
        files = [file for file in files if file in chosen]
    return [_of_file(load(file, "case", Case), file) for file in files]


def _of_file(case: Case, file: Path) -> Case:
    """Return a case with its name filled in, and in its evidence the file that declares it."""
    evidence, quick = ([dataclasses.replace(e, file=file) for e in form] for form in (case.evidence, case.quick or ()))
    return dataclasses.replace(case, name=file.stem, evidence=evidence, quick=quick)


def _find(name: str, files: Sequence[Path]) -> Path:
    """Return the file of a claim, given its number, its name, or both."""
    for file in files:
        number, _, claim_name = file.stem.partition("_")
        if name in (file.stem, claim_name, file.name) or (name.isdigit() and int(name) == int(number)):
            return file
    known = [file.stem.partition("_")[2] for file in files]
    raise UserError(f"no claim is called '{name}'{did_you_mean(name, known)}")
