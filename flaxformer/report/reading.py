"""Results of a study in Python: rows, arms, claims, and the weights that were kept."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from flaxformer.analysis.analysis import Analysis, ArmSummary, analyse_to_show
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.analysis.scaling_analysis import ScalingAnalysis
from flaxformer.model.weights import Transformer
from flaxformer.report import files, phrasing, shown, tables, terminal
from flaxformer.report.colours import COLOURS
from flaxformer.report.document import document
from flaxformer.report.loaded_model import LoadedModel, load
from flaxformer.report.numbers import number
from flaxformer.report.sections import Definitions, Figure, ReportSection, StudyReport
from flaxformer.report.shown import ShownList
from flaxformer.store import remote
from flaxformer.store.declaration import Declaration
from flaxformer.store.line_forms import LAUNCHES, command_words
from flaxformer.store.places import REPORT
from flaxformer.store.rows import CURVE, Row
from flaxformer.store.store import Store, read_lines
from flaxformer.study.divergence import on_validation
from flaxformer.study.weights_source import kept_weights_folder, trial_name
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError
from flaxformer.system.objects import url_of
from flaxformer.system.python_files import near_names, siblings
from flaxformer.system.wording import count_of, duration, join_words, printable, with_prefix
from flaxformer.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RunResults:
    """Results of one run.

    store: the study's folder.
    labels: level of each axis of its arm.
    row: its results, by name: `row["validation_loss"]`, `row["validation_loss_curve"]`.
    """

    store: Store
    labels: Mapping[str, str]
    row: Row

    @functools.cached_property
    def model(self) -> LoadedModel:
        """Its kept weights, with config and tokenizer.

        Raises:
          UserError: none were kept; or the code of its classes is needed (see `load`, which may trust it).
        """
        return load(self.store.root, self.labels, seed=self.row.seed)

    def __repr__(self) -> str:
        lines = [self._title, *(f"  {name}: {value}" for name, value in self._facts if value)]
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        return shown.notebook(
            StudyReport(
                name=self._study.name,
                question=self._title,
                about=self.row.trial,
                answer=self._score,
                verdict="",
                sections=[
                    ReportSection("Learning curves", [self._curve]),
                    ReportSection("", [Definitions(self._facts)]),
                ],
            )
        )

    @property
    def _study(self) -> Declaration:
        return self.store.declaration

    @property
    def _title(self) -> str:
        return f"{phrasing.labels(dict(self.labels)) or 'baseline'}, seed {self.row.seed}: {self.row.status}"

    @property
    def _score(self) -> str:
        return f"{phrasing.metric(self._study)} {number(self.row.get(self._study.metric))}"

    @property
    def _facts(self) -> list[tuple[str, str]]:
        """Scores and cost, by name."""
        row = self.row
        facts = [
            (name.replace("_", " "), number(value)) for name, value in row.metrics.items() if not name.endswith("_se")
        ]
        facts += [("diverged at step", str(row.diverged_at or "")), ("cause", row.cause or "")]
        if row.parameters is not None and row.flops is not None:
            facts += [("size", count_of(row.parameters, "parameter")), ("training", with_prefix(row.flops, "FLOP"))]
        return [*facts, ("time", duration(row.seconds) if row.seconds else ""), ("device", row.device or "")]

    @property
    def _curve(self) -> Figure:
        """The metric during training."""
        metric = on_validation(self._study.metric)
        curve = list(self.row.get(f"{metric}{CURVE}") or [])
        steps = self.row.evaluated_at or ()

        def draw(width: float) -> "Drawing":
            from matplotlib.figure import Figure as Drawing

            figure = Drawing(figsize=(width, 2.4), layout="constrained")
            ax = figure.subplots()
            ax.plot(steps, curve, color=COLOURS[0], marker="o", ms=2.6)
            ax.set(xlabel="step", ylabel=phrasing.metric(self._study))
            return figure

        return Figure(
            "curve", draw, "During training.", lambda: f"From {number(curve[0])} to {number(curve[-1])}.", bool(curve)
        )


class StudyResults:
    """Results in a folder, read again by each call of `flaxformer.results`; they show themselves.

    >>> results = flaxformer.results("runs/induction")
    >>> print(results)  # the answer, as `flaxformer report` prints it; a notebook shows tables and figures too
    >>> results.table.group_by("layers").agg(polars.col("validation_loss").mean())
    >>> results.run_of({"layers": "2"}, seed=0).model.weights

    Args:
      folder: output folder of a study.

    Raises:
      UserError: the folder holds no study, or one of another format.
    """

    def __init__(self, folder: str | Path) -> None:
        self.store = Store(Path(folder))
        self.analysis: Analysis = analyse_to_show(self.store, "flaxformer.results")
        """Everything that the report shows."""

    def __repr__(self) -> str:
        overrides = overrides_of(read_lines(self.store.root / LAUNCHES))
        lines = [shown.text(lambda console: terminal.show_answer(console, self.analysis, overrides))]
        page = self.store.root / REPORT
        return "\n".join([*lines, *([f"Report: {page}"] if page.exists() else [])])

    def _repr_html_(self) -> str:
        return shown.notebook(document(self.analysis, read_lines(self.store.root / LAUNCHES)))

    @functools.cached_property
    def table(self) -> pl.DataFrame:
        """One row per finished trial, with the columns of results.parquet."""
        return files.results(self.analysis)

    @property
    def arms(self) -> ShownList[ArmSummary]:
        """Every arm with its scores per seed, mean and interval."""
        return ShownList(self.analysis.arms, tables.arms(self.analysis))

    @property
    def claims(self) -> ShownList[JudgedClaim]:
        """Every claim with its differences per seed and its verdict."""
        return ShownList(
            self.analysis.claims, tables.claims(self.analysis), lambda claim: terminal.claim_line(claim, True)
        )

    @property
    def scaling(self) -> ScalingAnalysis | None:
        """Scaling laws, held-out sizes, and predicted effects; None for a study without `scaling`."""
        return self.analysis.scaling

    def run_of(self, labels: Mapping[str, str] | None = None, seed: int | None = None) -> RunResults:
        """Return the results of one run: its row, and its kept weights.

        Args:
          labels: level of each axis, such as {"norm": "pre"}; those of axes that leave one arm may be omitted.
          seed: seed of the run; by default the study's first.

        Raises:
          UserError: no arm or several arms have these labels, the study has no such seed, or the run has no results.
        """
        trial = trial_name(self.store.declaration, labels or {}, seed)
        row = self.store.rows().get(trial)
        if row is None:
            raise UserError(f"{self.store.root} has no results of {trial}; expected a run that has ended")
        return RunResults(self.store, row.labels, row)

    def weights_folder(self, labels: Mapping[str, str] | None = None, seed: int | None = None) -> Path:
        """Return the folder of the kept weights of one trial, for `flaxformer generate` and `Checkpoints`.

        Args:
          labels: level of each axis, such as {"norm": "pre"}; those of axes that leave one arm may be omitted.
          seed: seed of the trial; by default the study's first.

        Raises:
          UserError: no arm or several arms have these labels, the study has no such seed, or no weights were kept.
        """
        return kept_weights_folder(self.store, labels or {}, seed)

    def weights(
        self,
        labels: Mapping[str, str] | None = None,
        seed: int | None = None,
        step: int | None = None,
        trust_code: bool = False,
    ) -> tuple[Transformer, Run]:
        """Return the kept weights of one trial, and its run.

        Args:
          labels, seed: the trial; see `weights_folder`.
          step: one of the kept steps; by default the newest.
          trust_code: True to execute the folder's copy of your code, if its classes are not imported.

        Raises:
          UserError: see `weights_folder`; or no weights of that step were kept, or they are damaged; or the copy of the
            code is needed, and was changed or is not trusted.
        """
        model = load(self.store.root, labels or {}, seed=seed, step=step, trust_code=trust_code)
        assert model.run is not None
        return model.params, model.run


def overrides_of(launches: Sequence[JsonObject]) -> tuple[str, ...]:
    """Return what the last recorded command `run` changed in the study's run."""
    commands = [words for launch in launches if (words := command_words(launch.get("command") or ""))[1:2] == ["run"]]
    fields = {field.name for field in dataclasses.fields(Run)}
    changes = [word for word in (commands or [[]])[-1][3:] if re.split(r"[.=]", word)[0] in fields and "=" in word]
    return tuple(changes)


def results(folder: str | Path) -> StudyResults:
    """Return the results of a study's folder: rows, arms, claims, and the weights that were kept.

    Args:
      folder: output folder of a study, also one in object storage such as s3://bucket/study, which is fetched.

    Raises:
      UserError: the folder holds no study.
    """
    if url_of(folder) is not None:
        with remote.showing(folder, needs_arrays=True) as local_folder:
            return StudyResults(local_folder)
    path = Path(folder)
    if not path.exists():
        near = near_names(path, (place for place in siblings(path) if place.is_dir()))
        raise UserError(f"no folder '{folder}'; {near or 'expected the output folder of a study'}")
    return StudyResults(path)


def join(a: str | Path, b: str | Path) -> pl.DataFrame:
    """Return the rows of two studies side by side, paired by seed and by the axes that both have.

    Columns of `b` end in "_b", and columns of an axis that one study has alone keep its arms apart, so that arms with
    other axes are paired by the seed. `difference` is the metric of b − a, where both studies have the same metric.

    Raises:
      UserError: a folder holds no study, or they have no seed in common.
    """
    results_a, results_b = (results(x) if url_of(x) is not None else StudyResults(x) for x in (a, b))
    axes = [{axis.name: None for axis in both.analysis.study.axes} for both in (results_a, results_b)]
    keys = [*(name for name in axes[0] if name in axes[1]), "seed"]
    rows = results_a.table.join(results_b.table, on=keys, how="inner", suffix="_b", maintain_order="left")
    if not rows.height:
        raise UserError(
            f"{a} and {b} have no run with equal {join_words(keys)}; expected studies with a seed in common"
        )
    kept = {*results_a.table.columns, *axes[1]}
    renamed = {name: f"{name}_b" for name in results_b.table.columns if name not in kept}
    metrics = [both.analysis.study.metric for both in (results_a, results_b)]
    if metrics[0] != metrics[1]:
        return rows.rename(renamed)
    return rows.rename(renamed).with_columns(difference=pl.col(f"{metrics[0]}_b") - pl.col(metrics[0]))
