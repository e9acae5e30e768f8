"""The pages: the answer first, nothing fetched, no sideways scrolling on a phone or a desk, figures for a paper."""

import html
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure as Drawing
from msgspec.structs import replace
from study.tiny import LOWER, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.claims import table as claims_table
from flaxformer.claims.record import CaseRecord, Statement
from flaxformer.report import figures, index, phrasing
from flaxformer.report import html as html_page
from flaxformer.report.claims_figure import claims_figure
from flaxformer.report.colours import DARK
from flaxformer.report.curves_figure import curves_figure
from flaxformer.report.drawing import COLUMN, PAGE, STYLE, style_of
from flaxformer.report.scores_figure import arms_figure, quantities_figure
from flaxformer.report.sweep_figure import sweep_figure
from flaxformer.report.table import Table
from flaxformer.runner.probes import run_probe
from flaxformer.store.provenance import command, provenance
from flaxformer.store.records import write_document, write_table
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim, Probe
from flaxformer.system.typed_data import plain

LONG = "under a condition that takes many words to say, the first of the two arms ends below the second"
RATES = Axis("optimizer.learning_rate", {f"a rate with a long label {i}": 10.0**-i for i in range(2, 5)}, name="rate")
LAUNCH = {"launched": "2026-05-04T03:02:01+00:00", "devices": "2 × cpu", "commit": "0123456789ab"}
VERSIONS = dict.fromkeys(("flaxformer", "python", "jax", "jaxlib", "flax", "optax"), "1.2.3")


def draw(seed):
    """Numbers of very different sizes."""
    wiggle = 1 + 0.01 * ((seed * 7) % 5)
    return {"small": 4.9e-7 * wiggle, "one": wiggle, "a" * 70: 1.2e9 * wiggle}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of a study with long labels and a missing run, and of a probe."""
    root = tmp_path_factory.mktemp("runs")
    levels = list(RATES.levels)
    claims = [
        Claim(LONG, lower={"rate": levels[0]}, than={"rate": levels[1]}),
        Claim("b", lower={"rate": levels[2]}, than=9),
    ]
    study = tiny(
        question="Is <b>this</b> & that escaped?", axes=(RATES,), claims=claims, seeds=range(4), caveats=["x" * 200]
    )
    store = fill(
        root / "study", study, lambda trial: 2.0 + 0.1 * trial.seed + 0.3 * levels.index(trial.arm.labels["rate"])
    )
    [rows] = store.groups.glob("*")
    write_table(rows, list(store.rows().values())[:-1])
    store.record_launch(LAUNCH | VERSIONS | {"command": "flaxformer run study.py", "precision": "float32"})
    numbers = [
        Claim("the small one is small", equal={"quantity": "small"}, to=5e-7, within=1e-7),
        Claim("the large one is below a thousand, which it is not", lower={"quantity": "a" * 70}, than=1000),
    ]
    probe = Probe(name="probe", question="How large?", measure=draw, seeds=range(5), claims=numbers)
    list(run_probe(probe, Store(root / "nested" / "probe")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "METADATA", {"svg": figures.METADATA["svg"]})  # the pages need no other form
        entries = index.write_reports(root)
    index.write_index(root, entries)
    lines = [
        Statement(LONG, "4.007 [3.955, 4.059]", "1 ± 0.1", 10, "refuted", "before its data", root / "study"),
        Statement("b", "–", "–", 0, "failed"),
    ]
    (root / "claims.html").write_text(claims_table.page(root, [CaseRecord(1, LONG, LONG, 12.0, True, lines)], entries))
    return root


PAGES = ["study/report.html", "nested/probe/report.html", "index.html", "claims.html"]
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MEASURE = """<script>
onload = () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const inner = frame.contentDocument.documentElement
    const full = [...inner.querySelectorAll("figure")].every(figure => {
      const shown = [...figure.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().width > 0)
      return shown.length === 1 && shown[0].getBoundingClientRect().width >= figure.clientWidth - 1
    })
    const fits = [...inner.querySelectorAll(".scroll")].every(box => box.scrollWidth <= box.clientWidth)
    document.body.append(`[${frame.title} ${inner.scrollWidth} ${frame.contentWindow.innerWidth} ${full} ${fits}]`)
  }
}
</script>"""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which lays the pages out")
def test_no_page_scrolls_sideways_on_a_phone_or_a_desk(folder, tmp_path):
    frames = [
        f'<iframe title="{name}@{width}" width="{width}" height="800" style="border: 0" srcdoc="'
        f'{html.escape((folder / name).read_text())}"></iframe>'
        for name in PAGES
        for width in (360, 1280)
    ]
    shown = displayed(f"<!doctype html><body>{''.join(frames)}{MEASURE}</body>", tmp_path)
    sizes = re.findall(r"\[(\S+)@(\d+) (\d+) (\d+) (true|false) (true|false)\]", shown)
    assert sizes == [(name, width, width, width, "true", "true") for name in PAGES for width in ("360", "1280")]


def displayed(page, tmp_path):
    """The document after its scripts ran."""
    (tmp_path / "page.html").write_text(page)
    flags = [
        *FLAGS.split(),
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'user'}",
    ]
    address = (tmp_path / "page.html").as_uri()
    return subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", address], capture_output=True, text=True, timeout=120, check=True
    ).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which runs the script of the page")
def test_a_click_on_a_header_sorts_the_table_by_numbers_and_a_second_reverses_it(tmp_path):
    rows = [["b", "1,200"], ["a", "-3.5 [-4, -3]"], ["d", "–"], ["c", "< 0.5"], ["e", "2e-3"]]
    clicks = "<script>const heads = document.querySelectorAll('th button'); CLICKS</script>"
    orders = {"heads[0]": "abcde", "heads[1]": "aecbd", "heads[1] heads[1]": "dbcea"}
    for targets, order in orders.items():
        click = " ".join(f"{target}.click();" for target in targets.split())
        table = html_page.table(Table("", ["name", "value"], rows, 1))
        text = displayed(
            html_page.page("T", [table]).replace("</body>", clicks.replace("CLICKS", click) + "</body>"), tmp_path
        )
        assert "".join(re.findall(r'data-name="name"><span>(.)</span>', text)) == order
    assert 'aria-sort="descending"' in text


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which runs the script of the page")
def test_a_field_above_a_long_table_shows_the_rows_with_all_typed_words(tmp_path):
    rows = [[f"{kind} {i}", str(i)] for kind in ("Alpha", "beta") for i in range(8)]
    typed = """<script>
    const field = document.querySelector("input")
    field.value = "ALPHA  3"
    field.dispatchEvent(new Event("input"))
    </script>"""
    page = html_page.page("T", [html_page.table(Table("", ["name", "value"], rows, 1))])
    text = displayed(page.replace("</body>", f"{typed}</body>"), tmp_path)
    shown = [row for row in re.findall(r"<tr.*?</tr>", text, re.DOTALL)[1:] if not row.startswith("<tr hidden")]
    assert len(shown) == 1
    assert "Alpha 3" in shown[0]
    short = displayed(html_page.page("T", [html_page.table(Table("", ["name", "value"], rows[:8], 1))]), tmp_path)
    assert "<input" not in short


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fetches_nothing_and_its_one_script_is_for_tables(folder, name):
    text = (folder / name).read_text()
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert text.count("<script") == 1
    assert not re.search(r"fetch|XMLHttp|import|eval|http|innerHTML|document\.write|WebSocket", script)
    assert not re.search(r"\son[a-z]+=|@import|<link|<img|<iframe|javascript:", text)
    assert not re.search(r"""(src|href|url\()["'(=\s]*(https?:|//|data:|file:)""", text)
    assert all(link.startswith("#") for link in re.findall(r"url\(([^)]*)\)", text))
    for link in re.findall(r'<a href="([^"]*)"', text):
        assert (folder / name).parent.joinpath(link).is_file(), link
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"""(?:url\(|href=["'])#([^)"']+)""", text)) <= set(ids)


def test_a_report_says_the_question_the_answer_the_figure_and_then_the_rest(folder):
    text = (folder / "study/report.html").read_text()
    assert "Is &lt;b&gt;this&lt;/b&gt; &amp; that escaped?</h1>" in text
    order = ["<h1>", 'class="answer', "<figure", ">Claims<", ">Best rate<", ">Learning curves<", ">Limits<", ">Arms<"]
    order += [">Provenance<", ">How to reproduce<"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    answer = re.search(r'<p class="answer[^>]*>(.*?)</p>', text)[1]
    assert answer.startswith("With 1 run missing: ")
    for part in ("flaxformer run study.py", "0123456789ab", "2 × cpu", "float32", "jax 1.2.3", "2026-05-04 03:02 UTC"):
        assert part in text


def test_a_probe_has_its_claims_as_the_figure_and_its_numbers_as_a_table(folder):
    text = (folder / "nested/probe/report.html").read_text()
    assert text.count("<figure") == 1
    for part in ("claimed 5e-7 ± 1e-7", "claimed below 1,000", ">Quantities<", "e9"):
        assert part in text
    assert ">Arms<" not in text
    assert ">Learning curves<" not in text


def test_each_claim_stands_in_one_list_of_effects(folder):
    page = (folder / "study/report.html").read_text()
    text = re.sub(r'<svg.*?</svg>|<p class="answer.*?</p>', "", page, flags=re.DOTALL)
    effects, qualifications = re.split("<h2>Qualifications</h2>", text)
    assert effects.count(LONG) == 1
    assert re.split("<h2>", qualifications)[0].count(LONG) == 1
    assert "".join(re.split("<h2>", qualifications)[1:]).count(LONG) == 0


def test_a_figure_is_described_in_numbers_and_its_points_say_their_values(folder):
    analysis, text = analyse(Store(folder / "study")), (folder / "study/report.html").read_text()
    labels = [html.unescape(label) for label in re.findall(r'<svg role="img" aria-label="([^"]*)"', text)]
    assert len(labels) == 2 * text.count("<figure>") == 6
    titles = [html.unescape(title) for title in re.findall(r'<g class="point"><title>(.*?)</title>', text)]
    for claim in analysis.claims:
        assert phrasing.finding(claim) in labels[0]
        assert f"{claim.text}: {phrasing.finding(claim)}" in titles
    best = analysis.sweeps[0].lines[0].best
    assert f"best rate {best.numbers['rate']}" in labels[2]
    assert f"rate {best.numbers['rate']}: {phrasing.interval(best.arm.estimate)}" in titles
    assert "at step 0 to 2." in labels[4]


def test_every_colour_of_a_figure_has_one_for_dark_pages(folder):
    text = (folder / "study/report.html").read_text() + (folder / "nested/probe/report.html").read_text()
    figures = " ".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    used = set(re.findall(r"var\(--c([0-9a-f]{6}), #\1\)", figures))
    assert {"004488", "ffffff", "000000"} <= used
    assert used <= {colour.removeprefix("#") for colour in DARK} | {"ffffff"}
    assert not re.search(r"(?<!, )#[0-9a-f]{6}\b(?!\))", re.sub(r"&#x?\w+;", "", figures))
    for colour, dark in DARK.items():
        assert f"--c{colour.removeprefix('#')}: {dark};" in text


def test_stopped_runs_are_drawn_apart_from_results(tmp_path, style):
    store = fill(tmp_path, tiny(axes=(RATES,), claims=()), lambda trial: 2.0 + trial.run.optimizer.learning_rate)
    [rows] = store.groups.glob("*")
    first = next(iter(RATES.levels))
    changed = [
        row | ({"status": "stopped", "stopped_at": 3} if row["rate"] == first else {}) for row in store.rows().values()
    ]
    write_table(rows, changed)
    analysis = analyse(store)
    [ax] = sweep_figure(analysis, analysis.sweeps[0]).axes
    assert ax.get_xscale() == "log"
    lines = [line for line in ax.get_lines() if line.get_marker() == "o" and line.get_alpha() is None]
    drawn = {tuple(line.get_xdata()): line.get_markerfacecolor() for line in lines if line.get_markersize() < 4}
    assert drawn == {(1e-4, 1e-3): "#004488", (1e-2,): "white"}


@pytest.fixture
def style():
    with mpl.rc_context(STYLE):
        yield


def test_figures_fit_a_column_or_a_page_of_a_paper(folder, style):
    study, probe = analyse(Store(folder / "study")), analyse(Store(folder / "nested/probe"))
    found = [figure for one in (study, probe) for draw in (claims_figure, arms_figure, curves_figure)
             if (figure := draw(one, COLUMN))]  # fmt: skip
    found.append(quantities_figure(probe))
    found.append(sweep_figure(study, study.sweeps[0]))
    assert len(found) == 6
    assert {figure.get_size_inches()[0] for figure in found} == {COLUMN}
    assert claims_figure(study, PAGE).get_size_inches()[0] == PAGE


def test_a_long_name_of_axes_is_above_few_rows_and_not_cut_beside_them(tmp_path, style):
    figures = {}
    for name in ("rate", "peak learning rate of the optimizer of all layers"):
        axis = Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name=name)
        store = fill(tmp_path / name, tiny(axes=(axis,), claims=()), lambda trial: 2.0 + trial.seed)
        figures[name] = arms_figure(analyse(store), COLUMN)
    for name, figure in figures.items():
        [ax], title = figure.axes, " ".join(figure.get_suptitle().split())
        assert (ax.get_ylabel(), title) == ((name, "") if name == "rate" else ("", name))
        figure.draw_without_rendering()
        width, height = figure.get_size_inches() * figure.dpi
        for box in [text.get_window_extent() for text in (*figure.texts, ax.yaxis.label) if text.get_text()]:
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= width
            assert box.y1 <= height


@pytest.mark.parametrize("width", [COLUMN, PAGE])
@pytest.mark.parametrize("label", ["rate", "a name of an axis of many words, which has no end", "x" * 60])
def test_labels_of_axes_lie_within_a_saved_figure(tmp_path, style, width, label):
    figure = Drawing(figsize=(width, 3.0), layout="constrained")
    for ax in figure.subplots(1, 2):
        ax.set_xlabel(label)
        ax.set_ylabel(label)
    figures.save(figure, tmp_path, "figure")
    figure.draw_without_rendering()
    for axis in [axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]:
        assert "".join(axis.label.get_text().split()) == "".join(label.split())
        ends = axis.label.get_window_extent().get_points()
        assert (ends[0] >= -1).all()
        assert (ends[1] <= figure.bbox.get_points()[1] + 1).all()


def test_titles_of_panels_do_not_overlap(tmp_path, style):
    levels = {f"a learning rate of 10^-{i} per step": 10.0**-i for i in range(1, 5)}
    axes = (
        Axis("optimizer.learning_rate", levels, name="peak learning rate of the optimizer"),
        Axis("optimizer.warmup_steps", {"none": 0, "some": 1}, name="warm-up"),
    )
    figure = curves_figure(analyse(fill(tmp_path, tiny(axes=axes, claims=()), lambda trial: 2.0 + trial.seed)), PAGE)
    figure.draw_without_rendering()
    texts = [(ax, text) for ax in figure.axes for text in ax.findobj(mpl.text.Text)]
    boxes = [text.get_window_extent() for ax, text in texts if text.get_text() == ax.get_title(loc="left")]
    assert len(boxes) == 4
    assert not [1 for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
    assert max(box.x1 for box in boxes) <= figure.get_size_inches()[0] * figure.dpi


def test_claims_of_very_different_size_have_axes_of_their_own(folder, style):
    [small, large] = claims_figure(analyse(Store(folder / "nested/probe"))).axes
    assert small.get_xlim()[1] < 1e-6
    assert large.get_xlim()[1] > 1e9
    for ax, (low, high) in ((small, (4e-7, 6e-7)), (large, (1000, 1000))):
        drawn = {float(x) for line in ax.get_lines() for x in line.get_xdata()}
        assert {low, high} <= drawn
        band = ax.collections[0]
        edges = band.get_paths()[0].vertices[:, 0]
        assert (edges.min(), edges.max()) == (low if ax is small else ax.get_xlim()[0], high)
        assert ax.get_xlim()[0] < low


def test_claims_of_like_size_share_an_axis(tmp_path, style):
    claims = [LOWER, Claim("so it is at post", lower={"rate": "high"}, than={"rate": "low"}, where={"norm": "post"})]
    store = fill(tmp_path, tiny(claims=claims), lambda trial: trial.seed + (trial.arm.labels["rate"] == "low"))
    assert len(claims_figure(analyse(store)).axes) == 1


def test_styles_differ_without_colour():
    styles = [style_of(i) for i in range(35)]
    assert len({(one.marker, str(one.dashes)) for one in styles}) == 35
    neighbours = itertools.pairwise(styles)
    assert all(a.marker != b.marker and a.dashes != b.dashes and a.colour != b.colour for a, b in neighbours)


def test_a_metric_of_the_studys_own_has_learning_curves(tmp_path, style):
    store = fill(tmp_path, tiny(), lambda trial: 1.0 + 0.1 * trial.seed)
    [rows] = store.groups.glob("*")
    found = [
        row | {"entropy": 1e-3, "initial_entropy": 9.0, "entropy_curve": [9.0, 1e-3 * (1 + row["seed"])]}
        for row in store.rows().values()
    ]
    write_table(rows, found)
    write_document(store.root / "study.json", plain(replace(store.declaration, metric="entropy")))
    figure = curves_figure(analyse(store))
    assert figure.axes[0].get_ylabel().startswith("entropy")
    assert figure.axes[0].get_yscale() == "log"
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["norm pre", "norm post"]
    assert [len(ax.collections) for ax in figure.axes] == [2, 2]  # a band each


def test_the_command_is_kept_without_the_paths_of_the_machine():
    here = Path.cwd()
    words = ["run", f"{here}/studies/a b.py", "--output=/secret/place/out", "model.layers=2", "--set", "x=1/2"]
    assert command(["/secret/bin/flaxformer", *words]) == (
        "flaxformer run 'studies/a b.py' --output=out model.layers=2 --set x=1/2"
    )
    assert command(["/secret/flaxformer/cli/__main__.py", "report", "/x/runs"]) == "flaxformer report runs"
    assert command(["/usr/bin/pytest", "run"]) is None
    launch = provenance()
    assert launch["command"] is None
    assert launch["precision"].startswith("float32")
