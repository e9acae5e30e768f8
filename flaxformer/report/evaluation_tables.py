"""Table of the named evaluations of every arm."""

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.report import phrasing
from flaxformer.report.table import MOST_ROWS, Table
from flaxformer.statistics.judgement import estimate

TITLE = "Evaluation sets"


def evaluations(analysis: Analysis) -> Table:
    """The mean of every score of the named evaluations, and of the task's, with its interval over the seeds.

    A run that diverged counts as everywhere, with its score before training. Scores of runs that a halving stopped are
    left out.
    """
    names = analysis.study.evaluation_columns
    arms = analysis.arms[:MOST_ROWS] if names else []
    rows = [[*arm.labels.values(), *(_cell(arm, name) for name in names)] for arm in arms]
    axes = [axis.name for axis in analysis.study.axes]
    header = [*axes, *(name.replace("_", " ") for name in names)]
    return Table(TITLE, header, rows, len(axes), len(analysis.arms) - len(rows) if names else 0, "arms")


def _cell(arm: ArmSummary, name: str) -> str:
    scores = [] if arm.results is None else [arm.results.scores(name)[place] for place in arm.places]
    return phrasing.interval(estimate([score for score in scores if score is not None]))
