"""Figures of sweeps: sizes that rise together, ticks, limits, names of count models, and curves of many arms."""

import itertools
import math

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from study.tiny import bare_declaration, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report.curves_figure import curves_figure
from flaxformer.report.drawing import STYLE, draw_references, set_log_scale
from flaxformer.report.sweep_figure import sweep_figure
from flaxformer.study import Axis, Points
from flaxformer.system.wording import with_prefix

RATE = "optimizer.learning_rate"
RATES = Axis(RATE, {f"{rate:.0e}": rate for rate in (1e-4, 1e-3, 1e-2, 1e-1)}, name="rate")


@pytest.fixture(autouse=True)
def style():
    with mpl.rc_context(STYLE):
        yield


def figure_of(tmp_path, axes, loss):
    analysis = analyse(fill(tmp_path, tiny(axes=axes, claims=()), loss))
    return sweep_figure(analysis, analysis.sweeps[0])


def sizes(widths, decays):
    return Points(
        "size",
        {
            f"{width}": {"model.feed_forward.d_ff": width, "optimizer.weight_decay": decay}
            for width, decay in zip(widths, decays, strict=True)
        },
    )


def test_sizes_that_rise_together_share_a_panel_and_are_joined(tmp_path):
    figure = figure_of(tmp_path, (sizes((7, 13, 29), (0.1, 0.2, 0.3)),), lambda trial: 3.0 + trial.seed)
    [ax] = figure.axes
    assert ax.get_xlabel() == "d_ff, with weight_decay"
    assert any(list(line.get_xdata()) == [7, 13, 29] and line.get_linestyle() == "-" for line in ax.get_lines())


def test_numbers_in_different_orders_have_a_panel_each(tmp_path):
    figure = figure_of(tmp_path, (sizes((7, 13, 29), (0.1, 0.3, 0.2)),), lambda trial: 3.0 + trial.seed)
    assert [ax.get_xlabel() for ax in figure.axes] == ["d_ff", "weight_decay"]


def test_a_few_values_have_a_tick_each(tmp_path):
    figure = figure_of(tmp_path, (sizes((7, 13, 29), (0.1, 0.2, 0.3)),), lambda trial: 3.0 + trial.seed)
    [ax] = figure.axes
    figure.draw_without_rendering()
    assert list(ax.get_xticks()) == [7, 13, 29]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["7", "13", "29"]
    assert not len(ax.get_xticks(minor=True))


def test_intervals_of_all_values_are_within_the_axis(tmp_path):
    """Here the largest interval is that of the worst value; the first optimum is clear of the lower edge."""

    def loss(trial):
        place = math.log10(trial.run.optimizer.learning_rate) + 2.2
        return 2 + 0.3 * place**2 + 0.03 * trial.seed * (1 + max(0.0, 4 * place))

    [ax] = figure_of(tmp_path, (RATES,), loss).axes
    low, high = ax.get_ylim()
    drawn = [y for bars in ax.collections for path in bars.get_paths() for y in path.vertices[:, 1]]
    assert drawn
    assert low < min(drawn)
    assert max(drawn) < high
    bar = [line for line in ax.get_lines() if line.get_marker() == "|" and line.get_markeredgewidth() == 1.2]
    pixels = bar[0].get_transform().transform((1, bar[0].get_ydata()[0]))[1] - ax.bbox.y0
    assert pixels > 0.5 * bar[0].get_markersize() * ax.figure.dpi / 72


@pytest.mark.parametrize("is_set", [True, False])
def test_a_count_model_outside_the_limits_of_the_axis_has_no_name(is_set):
    ax = mpl.figure.Figure().subplots()
    ax.plot([0, 1], [2.0, 3.0])
    if is_set:
        ax.set_ylim(1.5, 3.2)
    study = bare_declaration(references={"unigram": 3.4, "bigram": 2.4, "far": 9.0})
    draw_references(study, ax, "y", (2.0, 3.0))
    assert [text.get_text() for text in ax.texts] == (["bigram"] if is_set else ["unigram", "bigram"])


@pytest.mark.every(2, "long")
@pytest.mark.parametrize(("rates", "evaluations", "is_drawn"), [(5, 2, True), (17, 2, False), (17, 3, True)])
def test_many_curves_of_two_points_are_not_drawn(tmp_path, rates, evaluations, is_drawn):
    axis = Axis(RATE, {str(n): 1e-3 * (n + 1) for n in range(rates)}, name="rate")
    analysis = analyse(fill(tmp_path, tiny(axes=(axis,), claims=()), lambda trial: 2.0 + trial.seed))
    for arm in analysis.arms:
        steps, points = arm.curve("validation_loss")
        longer = ([0, 3, 6], [points[0], *points]) if evaluations == 3 else (steps, points)
        object.__setattr__(arm, "curve", lambda metric, longer=longer: longer)
    assert (curves_figure(analysis) is not None) == is_drawn


@pytest.mark.parametrize(("low", "high"), [(15e6, 114e6), (30e6, 38e6), (1.0, 9.5), (2e-4, 3e-4), (1e3, 1e7)])
@pytest.mark.parametrize("width", [1.4, 3.0])
def test_ticks_of_a_logarithmic_axis_do_not_overlap(low, high, width):
    figure = Figure(figsize=(width, 1.5), layout="constrained")
    ax = figure.subplots()
    ax.plot([low, high], [0, 1])
    set_log_scale(ax, "x", text=lambda value: with_prefix(value, ""))
    figure.draw_without_rendering()
    ticks = [*ax.xaxis.get_major_ticks(), *ax.xaxis.get_minor_ticks()]
    shown = [tick.label1 for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]
    boxes = [label.get_window_extent() for label in shown]
    assert len(boxes) >= 2
    assert not [1 for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
