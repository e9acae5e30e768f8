"""Results show themselves: in a terminal as `flaxformer report` prints them, in a notebook as the page has them."""

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from study.tiny import EQUAL, LOWER, NORM, RATE, fill, tiny

import flaxformer
from flaxformer import cli
from flaxformer.analysis.judging import JudgedClaim
from flaxformer.report import html
from flaxformer.report.colours import DARK, PAGE_COLOURS
from flaxformer.report.files import write
from flaxformer.report.provenance_text import reproduction
from flaxformer.report.reading import overrides_of
from flaxformer.system.errors import UserError

EMPTY = {"br", "hr", "meta", "img", "path", "rect", "use", "line", "circle", "ellipse", "polygon", "polyline", "stop"}


def scores(trial):
    is_high = trial.arm.labels.get("rate") == "high"
    return 2.0 - 0.3 * is_high + 0.002 * ((7 * trial.seed + 3 * is_high) % 11)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    store = fill(tmp_path_factory.mktemp("shown"), tiny(seeds=range(6), claims=(LOWER, EQUAL)), scores)
    write(store)
    return flaxformer.results(store.root)


class Tags(HTMLParser):
    """Checks that tags are closed in order, and collects tags and ids."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag


@pytest.mark.long
def test_the_text_is_the_answer_of_the_command(results, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["report", str(results.store.root)]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    text = repr(results).splitlines()
    assert len(text) > 5
    assert set(text) <= set(printed)
    assert max(map(len, text[:-1])) <= 80


def test_a_notebook_has_sections_of_the_page_in_its_order(results):
    shown, page = results._repr_html_(), (results.store.root / "report.html").read_text()
    headings = [re.findall(r"<h2>(.*?)</h2>", text) for text in (shown, page)]
    assert headings[0] == [title for title in headings[1] if title in headings[0]]
    assert {"Claims", "Learning curves", "Limits", "Arms"} <= set(headings[0])
    for part in ("p", "table"):  # the renderers are the page's: equal parts are equal text
        parts = re.findall(rf"<{part}\\b.*?</{part}>", shown, re.DOTALL)
        assert all(text in page for text in parts)


def test_html_is_closed_has_no_script_and_distinct_ids(results):
    fragments = [
        item._repr_html_()
        for item in (results, results.claims, results.arms, results.run_of({"norm": "pre", "rate": "low"}))
    ]
    for fragment in fragments:
        assert "script" not in Tags(fragment).tags
    ids = Tags("".join(fragments)).ids
    assert ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', "".join(fragments))) <= set(ids)


def test_styles_are_of_the_box_alone_and_follow_the_theme_of_the_notebook():
    style = re.search("<style>(.*?)</style>", html.fragment(["<p>text</p>"]), re.DOTALL)[1]
    depth, selectors, start = 0, [], 0
    for place, letter in enumerate(style):
        if letter == "{":
            selectors += [style[start:place].strip()] if depth == 0 else []
            depth += 1
        if letter == "}":
            depth, start = depth - 1, place + 1
    assert depth == 0
    assert all(".flaxformer" in one or one.startswith("@media") for one in selectors)
    assert ":root" not in style
    assert "body" not in style
    for light, dark in [*PAGE_COLOURS.values(), *DARK.items()]:
        for theme, colour in (("[data-jp-theme-light=true]", light), ("[data-jp-theme-light=false]", dark)):
            assert colour in style.partition(theme)[2].partition("}")[0]


@pytest.mark.parametrize("name", ["claims", "arms"])
def test_lists_are_lists_and_show_themselves(results, name):
    items = getattr(results, name)
    assert list(items) == getattr(results.analysis, name)
    assert len(items) == {"claims": 2, "arms": 4}[name]
    shown = items._repr_html_()
    assert shown.count("<tr>") == len(items) + 1
    words = [item.text if isinstance(item, JudgedClaim) else item.labels["norm"] for item in items]
    for word in words:
        assert word in shown
        assert word in " ".join(repr(items).split())


def test_a_run_shows_its_scores_and_its_curve(results):
    run = results.run_of({"norm": "pre", "rate": "high"}, seed=2)
    assert run.row["seed"] == 2
    assert run.row["validation_loss"] == pytest.approx(scores_of(run))
    assert "norm pre, rate high, seed 2: done" in repr(run)
    assert "validation loss: 1.7" in repr(run)
    assert "validation loss" in run._repr_html_()


def scores_of(run):
    return 2.0 - 0.3 + 0.002 * ((7 * run.row["seed"] + 3) % 11)


@pytest.mark.parametrize(
    ("labels", "seed", "message"),
    [
        ({"norm": "pre"}, 0, "2 arms have the labels"),
        ({"norm": "pre", "rate": "low"}, 9, "seed is 9; expected one of"),
        ({"norm": "none", "rate": "low"}, 0, "0 arms have the labels"),
    ],
)
def test_a_run_that_is_not_there_is_one_message(results, labels, seed, message):
    with pytest.raises(UserError, match=message):
        results.run_of(labels, seed)


def test_a_misspelt_folder_has_a_suggestion(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "induction").mkdir()
    with pytest.raises(UserError, match=r"no folder 'inducton'; did you mean 'induction'\?"):
        flaxformer.results("inducton")


def test_an_incomplete_study_shows_itself(tmp_path):
    study = tiny(axes=(NORM, RATE), claims=(LOWER,), seeds=range(4))
    store = fill(tmp_path, study, lambda trial: math.nan if trial.seed == 3 else scores(trial))
    shown = flaxformer.results(store.root)
    assert "Does it run?" in repr(shown)
    Tags(shown._repr_html_())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("flaxformer run a.py model.layers=4 --output runs/a=b --seeds 4", ("model.layers=4",)),
        ("flaxformer run a.py --exact training.steps=5 --mesh data=2 seed=3", ("training.steps=5", "seed=3")),
        ("flaxformer report runs/a", ()),
        ("flaxformer run a.py", ()),
    ],
)
def test_overrides_of_a_command_are_found(command, expected):
    assert overrides_of([{"command": command}, {"command": None}]) == expected


def test_results_are_close_to_the_numbers_of_the_study(results):
    expected = np.mean([scores_of(results.run_of({"norm": "pre", "rate": "high"}, seed)) for seed in range(6)])
    assert results.arms[1].estimate.mean == pytest.approx(expected)


@pytest.mark.parametrize(("file", "is_remarked"), [(None, True), ("study.py", False)])
def test_the_page_says_that_a_notebook_is_not_kept(results, file, is_remarked):
    parts = reproduction(results.analysis, [{"launched": "2026-01-01T00:00", "file": file}])
    assert any(getattr(part, "text", "").endswith("Keep the notebook.") for part in parts) == is_remarked
