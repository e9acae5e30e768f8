"""Scaling laws in a report: tables, figure, findings, and the same numbers in all of them."""

import re

import matplotlib as mpl
import pytest
from study.scaling_studies import scaled, scores, sized
from study.tiny import fill

from flaxformer.analysis.scaling_analysis import Crossing, PredictedEffect
from flaxformer.report import figures, scaling_text
from flaxformer.report.colours import DARK
from flaxformer.report.drawing import COLUMN, PAGE, STYLE
from flaxformer.report.files import write
from flaxformer.report.scaling_figure import scaling_figure
from flaxformer.report.scaling_text import interval
from flaxformer.statistics.scaling_tests import LawEstimate


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    return scaled(tmp_path_factory.mktemp("sizes"))


@pytest.mark.slow
def test_the_page_and_the_tables_have_the_laws(tmp_path):
    store = fill(tmp_path, sized(), scores())
    found = write(store)
    page = (tmp_path / "report.html").read_text()
    law, held_out, effects = (table.in_form("page") for table in scaling_text.tables(found))
    assert "<h2>Scaling</h2>" in page
    for table in (law, held_out, effects):
        assert table.rows
        assert f"<h3>{table.title}</h3>" in page
        assert f"## {table.title}" in (tmp_path / "results.md").read_text()
    assert [row[-1] for row in held_out.rows] == ["yes", "yes"]
    for line in scaling_text.findings(found):
        assert line in (tmp_path / "results.md").read_text()
    assert (tmp_path / "figures/scaling.svg").exists()
    assert set(re.findall(r"(?<=: )#[0-9a-f]{6}\b", (tmp_path / "figures/scaling.svg").read_text())) <= {
        *DARK,
        "#ffffff",
    }


@pytest.mark.long
@pytest.mark.parametrize("width", [COLUMN, PAGE])
def test_the_figure_has_curves_and_hollow_held_out_sizes(analysis, width):
    with mpl.rc_context(STYLE):
        [ax] = scaling_figure(analysis, width).axes
    faces = [mpl.colors.to_hex(line.get_markerfacecolor()) for line in ax.get_lines() if len(line.get_xdata()) == 1]
    assert faces.count("#ffffff") == 2
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel() == "tokens"
    assert sum(len(line.get_xdata()) == 100 for line in ax.get_lines()) == 4


def test_a_study_without_scaling_has_no_tables_and_no_figure(tmp_path):
    found = scaled(tmp_path, scaling=None)
    assert scaling_text.tables(found) == []
    assert scaling_text.findings(found) == []
    assert scaling_figure(found) is None


def test_the_description_has_the_findings(analysis):
    assert scaling_text.findings(analysis)[0] in figures.scaling(analysis).describe()


@pytest.mark.parametrize(
    ("crossings", "text"),
    [
        ((), "none from 1 to 1,000"),
        ((Crossing(20.0, 10.0, 30.0),), "20 [10, 30]"),
        ((Crossing(20.0, 0.0, 30.0),), "20 [below 1, 30]"),
        ((Crossing(20.0, 10.0, float("inf")),), "20 [10, above 1,000]"),
        ((Crossing(float("nan"), 10.0, float("inf")),), "not excluded in [10, above 1,000]"),
        ((Crossing(20.0, 0.0, float("inf")),), "not determined from 1 to 1,000"),
    ],
)
def test_a_crossing_without_a_bound_says_so(crossings, text):
    effect = PredictedEffect({}, {}, 1000.0, LawEstimate(0.0, -1.0, 1.0), 8, crossings, (1.0, 1000.0))
    assert scaling_text.crossing(effect) == text


def test_an_interval_without_an_end_is_infinite():
    assert interval(LawEstimate(0.5, 0.4, float("inf"))) == "0.50 [0.40, ∞]"
    assert interval(None) == "–"
