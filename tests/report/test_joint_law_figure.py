"""The figure of joint scaling laws: points, curves and legend against the fits."""

import matplotlib as mpl
import numpy as np
import pytest
from study.scaling_studies import grid_study, joint_scores, scaled, sized
from study.tiny import NORM, fill

from flaxformer.analysis.analysis import analyse
from flaxformer.report import scaling_text
from flaxformer.report.colours import GREY
from flaxformer.report.drawing import COLUMN, MARKERS, PAGE, STYLE
from flaxformer.report.files import write
from flaxformer.report.scaling_figure import joint_law_figure


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("grid"), sized(**grid_study(axes=(NORM,))), joint_scores())


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("width", [COLUMN, PAGE])
def test_the_figure_has_a_panel_per_arm_and_a_line_per_number_of_parameters(store, width):
    analysis = analyse(store)
    with mpl.rc_context(STYLE):
        figure = joint_law_figure(analysis, width)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["pre", "post"]
    for ax, fit in zip(figure.axes, analysis.scaling.joint_fits, strict=True):
        points = [
            line
            for line in ax.get_lines()
            if len(line.get_xdata()) == 1 and line.get_color() != GREY and line.get_marker() in MARKERS
        ]
        drawn = sorted((x, y) for line in points for x, y in zip(*line.get_data(), strict=True))
        np.testing.assert_allclose(drawn, sorted((point.tokens, point.arm.estimate.mean) for point in fit.points))
        assert [mpl.colors.to_hex(line.get_markerfacecolor()) for line in points].count("#ffffff") == 1
        curves = [line for line in ax.get_lines() if len(line.get_xdata()) == 60]
        assert [line.get_linestyle() for line in curves] == [*["-", "--"] * 3, *["--"] * 2]
        for line, size in zip(curves[:6:2], sorted({point.size for point in fit.fitted_points}), strict=True):
            numbers = {name: one.value for name, one in fit.numbers.items()}
            law = (
                numbers["L∞"] + numbers["A"] * size ** -numbers["α"] + numbers["B"] * line.get_xdata() ** -numbers["β"]
            )
            np.testing.assert_allclose(line.get_ydata(), law, rtol=1e-6)
    [legend] = figure.legends
    smallest = sorted(min(point.size for point in fit.points) for fit in analysis.scaling.joint_fits)
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[0] == f"N = {smallest[0]:.0f}, {smallest[1]:.0f}"
    assert len(texts) == 4


def test_without_a_joint_law_there_is_no_figure(tmp_path):
    assert joint_law_figure(scaled(tmp_path)) is None


@pytest.mark.long
def test_the_page_has_the_figure_and_joint_laws_come_first(store):
    found = write(store)
    page = (store.root / "report.html").read_text()
    assert (store.root / "figures/joint_law.svg").exists()
    assert "per number of parameters: " in page
    assert "B·D^(−β)" in scaling_text.findings(found)[0]
