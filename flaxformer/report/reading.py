"""Results of a study in Python: rows, arms, claims, and the weights that were kept."""

import functools
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.weights import read_weights
from flaxformer.digests import JsonObject
from flaxformer.model.weights import Transformer
from flaxformer.report.write import results
from flaxformer.store.store import Store
from flaxformer.store.weights import weights_folder
from flaxformer.struct import UserError
from flaxformer.study.analysis import Analysis, ArmSummary, analyse_to_show
from flaxformer.study.judging import JudgedClaim
from flaxformer.study.load import load_run
from flaxformer.training.run import Run
from flaxformer.wording import listed


class StudyResults:
    """Results in a folder, read anew by each call of `flaxformer.results`.

    >>> results = flaxformer.results("runs/induction")
    >>> results.table.group_by("layers").agg(polars.col("validation_loss").mean())
    >>> params, run = results.weights({"layers": "2"}, seed=0)

    Args:
      folder: output folder of a study.

    Raises:
      UserError: the folder holds no study, or one of another format.
    """

    def __init__(self, folder: str | Path) -> None:
        self.store = Store(Path(folder))
        self.analysis: Analysis = analyse_to_show(self.store, "flaxformer.results")
        """Everything that the report shows."""

    @functools.cached_property
    def table(self) -> pl.DataFrame:
        """One row per finished trial, with the columns of results.parquet."""
        return pl.from_dicts([dict(row) for row in results(self.analysis)], infer_schema_length=None)

    @property
    def arms(self) -> list[ArmSummary]:
        """Every arm with its scores per seed, mean and interval."""
        return self.analysis.arms

    @property
    def claims(self) -> list[JudgedClaim]:
        """Every claim with its differences per seed and its verdict."""
        return self.analysis.claims

    def weights_folder(self, labels: Mapping[str, str] | None = None, seed: int | None = None) -> Path:
        """Return the folder of the kept weights of one trial, for `flaxformer generate` and `Checkpoints`.

        Args:
          labels: level of each axis, such as {"norm": "pre"}; those of axes that leave one arm may be omitted.
          seed: seed of the trial; by default the study's first.

        Raises:
          UserError: no arm or several arms have these labels, the study has no such seed, or no weights were kept.
        """
        study = self.analysis.study
        seed = study["seeds"][0] if seed is None else seed
        if seed not in study["seeds"]:
            raise UserError(f"seed is {seed}; expected one of {listed(map(str, study['seeds']))}")
        trial = _trial(study, labels or {}, seed)
        folder = weights_folder(self.store.root, trial)
        if not Checkpoints(folder).steps():
            raise UserError(f"{self.store.root} has no weights of {trial}; expected a study that was run with --keep")
        return folder

    def weights(
        self, labels: Mapping[str, str] | None = None, seed: int | None = None, step: int | None = None
    ) -> tuple[Transformer, Run]:
        """Return the kept weights of one trial, and its run.

        Args:
          labels, seed: the trial; see `weights_folder`.
          step: one of the kept steps; by default the newest.

        Raises:
          UserError: see `weights_folder`; or no weights of that step were kept, or they are damaged.
        """
        folder = self.weights_folder(labels, seed)
        run = load_run(folder)
        return read_weights(folder, run, Checkpoints(folder).steps()[-1] if step is None else step), run


def _trial(study: JsonObject, labels: Mapping[str, str], seed: int) -> str:
    """The name of the trial with these labels."""
    own = [trial for trial in study["trials"] if trial["seed"] == seed]
    found = [trial for trial in own if labels.items() <= trial["labels"].items()]
    if len(found) == 1:
        return found[0]["trial"]
    known = {name: dict.fromkeys(trial["labels"][name] for trial in own) for name in own[0]["labels"]}
    levels = "; ".join(f"{name}: {listed(known[name])}" for name in known)
    raise UserError(f"{len(found)} arms have the labels {dict(labels)}; expected one ({levels})")
