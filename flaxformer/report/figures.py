"""Figures of a report: what each draws, its caption, and its content in words for readers who do not see it."""

import functools
import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Drawing

from flaxformer.analysis.analysis import MOST_DRAWN, Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.report import costs, heads, maps, numbers, phrasing, scaling_text, verdicts
from flaxformer.report.claims_figure import claims_figure
from flaxformer.report.curves_figure import curves_figure
from flaxformer.report.drawing import COLUMN, PAGE, POINT, STYLE, break_long_labels
from flaxformer.report.heads_figure import attention_figure, heads_figure, lens_figure
from flaxformer.report.html import PageFigure
from flaxformer.report.scaling_figure import joint_law_figure, scaling_figure
from flaxformer.report.scores_figure import arms_figure, effects_figure, effects_of, quantities_figure
from flaxformer.report.sections import DrawFigure, Figure
from flaxformer.report.sweep_figure import sweep_figure
from flaxformer.report.texts import write_printable
from flaxformer.report.thinning import MOST_DOTS, thinned_remark
from flaxformer.system.files import make_folder, write_atomically
from flaxformer.system.garbage import without_collections
from flaxformer.system.wording import count_of

METADATA: dict[str, dict[str, None]] = {"svg": {"Date": None}, "png": {}, "pdf": {"CreationDate": None}}
"""Formats, with the metadata of the time of creation left out: equal results give equal files."""
MOST_LAYOUTS = 4
"""Number of times that a figure is laid out until its labels lie within it."""
MOST = 12
"""Number of items that a description lists."""
STOPPED = " Hollow marks are arms that were stopped early, at their score then; it is not a final result."


def claims(analysis: Analysis) -> Figure:
    """The declared claims."""

    def describe() -> str:
        items = [f"{verdicts.verdict_of(claim)}: {claim.text} ({phrasing.finding(claim)})" for claim in analysis.claims]
        return f"{count_of(len(items), 'claim')}. {_shorten(items)}"

    caption = (
        "The declared claims: a dot per seed, and above the dots the mean with the interval that is tested (95 % for a "
        "difference, 90 % for an equality). The claim holds in the shaded region; a hollow mark is inconclusive, a "
        "cross refuted."
    )
    return Figure("claims", functools.partial(claims_figure, analysis), caption + _dots(analysis), describe)


def arms(analysis: Analysis) -> Figure:
    """The score of every arm; left out where a sweep shows the arms."""
    caption = "Every arm: a dot per seed, and above the dots the mean with its 95 % t-interval."

    def describe() -> str:
        return f"Mean {phrasing.metric(analysis.study)} {_increasing(analysis.arms)}"

    is_shown = _are_few(analysis) and not analysis.sweeps
    return _figure(analysis, "arms", functools.partial(arms_figure, analysis), caption, describe, is_shown)


def effects(analysis: Analysis) -> Figure:
    """The effects of single changes."""
    caption = (
        "The effect of every change, positive where it is good, by its size: within the whole (full marks) and alone "
        "(hollow marks), as means over paired seeds with 95 % intervals, which are not corrected for their number."
    )

    def describe() -> str:
        single = [change for change in analysis.changes if change.is_single]
        parts = [[f"{phrasing.interval(e.metric, '+')} {name}" for name, e in effects_of(change)] for change in single]
        items = [f"{change.name} {', '.join(texts)}" for change, texts in zip(single, parts, strict=True)]
        return f"Effects on the {phrasing.metric(analysis.study)}: {_shorten(items)}"

    return Figure("effects", functools.partial(effects_figure, analysis), caption, describe)


def quantities(analysis: Analysis) -> Figure:
    """The quantities of a probe without claims."""
    caption = "Every quantity: a dot per seed, and above the dots the mean with its 95 % t-interval."

    def describe() -> str:
        return f"Mean value {_increasing(analysis.quantities)}"

    is_shown = not analysis.arms and not analysis.claims
    return _figure(analysis, "quantities", functools.partial(quantities_figure, analysis), caption, describe, is_shown)


def _increasing(summaries: Sequence[ArmSummary]) -> str:
    """Mean and interval of each arm or quantity, in increasing order."""
    shown = sorted((arm for arm in summaries if arm.estimate.n), key=lambda arm: arm.estimate.mean)
    items = [f"{phrasing.arm(arm.labels)} {phrasing.interval(arm.estimate)}" for arm in shown]
    return f"in increasing order: {_shorten(items)}"


def curves(analysis: Analysis) -> Figure:
    """The metric during training."""
    caption = "During training: means over seeds; bands are pointwise 95 % t-intervals."
    describe, is_shown = functools.partial(_describe_curves, analysis), _are_few(analysis)
    return _figure(analysis, "curves", functools.partial(curves_figure, analysis), caption, describe, is_shown)


def compute(analysis: Analysis) -> Figure:
    """The metric against compute, where the arms differ in it or are compared at equal cost."""
    caption = "Against the FLOPs of training so far: means over seeds; bands are pointwise 95 % t-intervals."
    is_shown = "FLOPs" in costs.differing_costs(analysis) or bool(analysis.study.compare)
    is_shown = is_shown and _are_few(analysis)
    draw, describe = functools.partial(curves_figure, analysis, against="compute"), lambda: _describe_curves(analysis)
    return _figure(analysis, "compute", draw, caption, describe, is_shown)


def _describe_curves(analysis: Analysis) -> str:
    """First and last mean of each learning curve."""
    items = []
    for arm in analysis.arms:
        if (curve := arm.curve(analysis.study.metric)) is not None:
            steps, points = curve
            first, last = numbers.number(points[0].mean), numbers.number(points[-1].mean)
            items.append(
                f"{phrasing.arm(arm.labels)} from {first} at step {steps[0]:,} to {last} at step {steps[-1]:,}"
            )
    return f"{phrasing.metric(analysis.study)} during training: {_shorten(items)}"


def sweep(analysis: Analysis, index: int) -> Figure:
    """The metric against the values of a sweep."""
    swept = analysis.sweeps[index]
    caption = (
        "Means over seeds with 95 % t-intervals against the value; a ring marks the best value, and bars at the bottom "
        "are 95 % intervals of the optima."
    )
    caption += STOPPED if len(analysis.stopped_runs) else ""
    caption += thinned_remark(swept)

    def describe() -> str:
        first, points = swept.names[0], [point for line in swept.lines for point in line.points]
        values = [point.numbers[first] for point in points]
        stopped = sum(point.arm.stopped_at is not None for point in points)
        tried = f"{first} from {numbers.round_digits(min(values))} to {numbers.round_digits(max(values))}"
        remark = f", {count_of(stopped, 'arm')} stopped early" if stopped else ""
        items, names = phrasing.sweep_findings(analysis, [swept]), " and ".join(swept.names)
        return f"{phrasing.metric(analysis.study)} against {names}: {tried}{remark}. {_shorten(items)}"

    name = f"sweep{index + 1 if index else ''}"
    return _figure(analysis, name, functools.partial(sweep_figure, analysis, swept), caption, describe)


def scaling(analysis: Analysis) -> Figure:
    """The metric against size, with the law of each arm."""
    caption = (
        "Means over seeds with 95 % t-intervals against size, held-out sizes hollow; the fitted laws, dashed beyond "
        "the fitted sizes, up to ten times the largest size; bands are pointwise 95 % intervals of the laws."
    )

    def describe() -> str:
        return f"{phrasing.metric(analysis.study)} against size: {_shorten(scaling_text.findings(analysis))}"

    return _figure(analysis, "scaling", functools.partial(scaling_figure, analysis), caption, describe)


def joint_law(analysis: Analysis) -> Figure:
    """The metric against training tokens and parameters, with the joint law of each arm."""
    caption = (
        "The joint law of each arm in parameters N and tokens D: means over seeds with 95 % t-intervals, held-out "
        "sizes hollow; the fitted law at each N, dashed where no run was fitted."
    )

    def describe() -> str:
        metric, items = phrasing.metric(analysis.study), scaling_text.joint_findings(analysis)
        return f"{metric} against training tokens, per number of parameters: {_shorten(items)}"

    return _figure(analysis, "joint_law", functools.partial(joint_law_figure, analysis), caption, describe)


def heads_of_layers(analysis: Analysis) -> Figure:
    """Numbers per layer and head of the first arm."""
    caption = (
        "A number per layer and head of the first arm: the mean over seeds, and half the width of its 95 % t-interval; "
        "the shade is the mean over the largest of its panel. With several seeds, the heads of each layer are ranked "
        "in each seed."
    )

    def describe() -> str:
        items = [
            f"{grid.quantity.replace('_', ' ')} in {layer} up to "
            f"{phrasing.interval(max(estimates, key=lambda estimate: estimate.mean))}"
            for grid in heads.head_grids(analysis)
            for layer, estimates in grid.layers.items()
        ]
        return f"Numbers per head: {_shorten(items)}"

    return _figure(analysis, "heads", lambda width: heads_figure(heads.head_grids(analysis), width), caption, describe)


def attention_maps(analysis: Analysis) -> list[Figure]:
    """Attention weights, a figure per arm of the first arms that have some."""
    return [_attention_map(analysis, index) for index in range(len(maps.arms_with_maps(analysis)[: maps.MOST_ARMS]))]


def _attention_map(analysis: Analysis, index: int) -> Figure:
    def draw(width: float) -> Drawing | None:
        layers = list(maps.drawn_maps(analysis).values())[index]
        return attention_figure(layers, width, is_ranked=maps.is_ranked(analysis))

    name, caption = f"maps{index + 1 if index else ''}", maps.caption(analysis, index)
    return _figure(analysis, name, draw, caption, lambda: maps.description(analysis, index))


def lens(analysis: Analysis) -> Figure:
    """Loss of the residual stream after each block."""
    caption = (
        "Loss of the head's output for the residual stream after each block (logit lens): means over seeds with 95 % "
        "t-intervals."
    )

    def describe() -> str:
        items = [
            f"{name} from {phrasing.interval(points[0])} after 0 blocks to {phrasing.interval(points[-1])} after "
            f"{len(points) - 1}"
            for name, points in heads.lens_curves(analysis).items()
        ]
        return f"Logit lens: {_shorten(items)}"

    def draw(width: float) -> Drawing | None:
        return lens_figure(heads.lens_curves(analysis), analysis.study.unit, width)

    return _figure(analysis, "lens", draw, caption, describe)


def _figure(
    analysis: Analysis, name: str, draw: DrawFigure, caption: str, describe: Callable[[], str], when: bool = True
) -> Figure:
    """Return a figure of scores, whose caption names the dots that are left out, and the losses of count models."""
    caption += _dots(analysis)
    references = phrasing.references(analysis)
    if references and analysis.study.metric == "validation_loss":
        caption += f" Count models on the same evaluation windows, dashed where they are near: {references}."
    return Figure(name, draw, caption, describe, when)


def _dots(analysis: Analysis) -> str:
    """Sentence on the seeds that have no dot, after a space; empty without any."""
    if max((len(arm.scores) for arm in [*analysis.arms, *analysis.quantities]), default=0) <= MOST_DOTS:
        return ""
    return f" Of more than {MOST_DOTS} seeds, {MOST_DOTS} have a dot, evenly spaced by rank."


def _are_few(analysis: Analysis) -> bool:
    """True if the arms are few enough to be drawn one by one."""
    return len(analysis.arms) <= MOST_DRAWN


def _shorten(items: Sequence[str]) -> str:
    more = len(items) - MOST
    return "; ".join(items[:MOST]) + (f"; and {more} more, in the tables" if more > 0 else "") + "."


def draw(figures: Iterable[Figure], folder: Path) -> dict[str, PageFigure]:
    """Write figures in every format at the width of a column; return those that have content by their names."""
    with mpl.rc_context(STYLE), without_collections():
        drawn = {}
        for figure in figures:
            if figure.when and (narrow := figure.draw(COLUMN)) is not None and (wide := figure.draw(PAGE)) is not None:
                drawn[figure.name] = PageFigure(save(narrow, folder, figure.name), _svg(wide))
        return drawn


def draw_for_notebook(figures: Iterable[Figure]) -> dict[str, PageFigure]:
    """Return the figures that have content by their names, in one form, and write no file."""
    with mpl.rc_context(STYLE):
        drawn = {figure.name: figure.draw(PAGE) for figure in figures if figure.when}
        return {name: PageFigure("", _svg(drawing)) for name, drawing in drawn.items() if drawing is not None}


def save(figure: Drawing, folder: Path, name: str) -> str:
    """Write one figure in every format; return its SVG text."""
    make_folder(folder)
    text = _svg(figure)
    write_printable(folder / f"{name}.svg", text)
    for artist in figure.findobj(lambda artist: (artist.get_gid() or "").startswith(POINT)):
        artist.set_visible(False)  # only an SVG can show their text
    for kind, metadata in METADATA.items():
        if kind != "svg":
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=300, metadata=metadata)
            write_atomically(folder / f"{name}.{kind}", buffer.getvalue())
    return text


def _svg(figure: Drawing) -> str:
    """A figure as SVG whose points show their text under the pointer."""
    if (engine := figure.get_layout_engine()) is not None:
        for _ in range(MOST_LAYOUTS):  # a label of more lines moves the axes, and with them the other labels
            engine.execute(figure)
            if not break_long_labels(figure):
                break
    figure.set_layout_engine(None)  # laid out once, for all formats; under "none", each would be drawn twice
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata=METADATA["svg"])
    return re.sub(rf'<g id="{POINT}([^"]*)">', r'<g class="point"><title>\1</title>', buffer.getvalue().decode())
