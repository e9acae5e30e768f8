"""Results of one run of a study, which show themselves: scores, cost and the curve of the study's metric."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flaxformer.report import phrasing, shown
from flaxformer.report.colours import COLOURS
from flaxformer.report.loaded_model import LoadedModel, load
from flaxformer.report.numbers import number
from flaxformer.report.sections import Definitions, Figure, ReportSection, StudyReport
from flaxformer.store.declaration import Declaration
from flaxformer.store.rows import CURVE, Row
from flaxformer.store.store import Store
from flaxformer.study.divergence import on_validation
from flaxformer.study.weights_source import trial_name
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of, duration, printable, with_prefix

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


def run_of(store: Store, labels: Mapping[str, str], seed: int | None) -> RunResults:
    """Return the results of a run of a study.

    Args:
      store: the study's folder.
      labels: level of each axis; those of axes that leave one arm may be omitted.
      seed: its seed; None is the study's first.

    Raises:
      UserError: no arm or several have these labels, there is no such seed, or the run has no results.
    """
    trial = trial_name(store.declaration, labels, seed)
    row = store.rows().get(trial)
    if row is None:
        raise UserError(f"{store.root} has no results of {trial}; expected a run that has ended")
    return RunResults(store, row.labels, row)
