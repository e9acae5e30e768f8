"""Numbers per head and of the logit lens in a report: the grids by loops, the figures, their colours and texts."""

import dataclasses
import re
import statistics

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats
from study.tiny import fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report import heads, maps
from flaxformer.report.colours import DARK
from flaxformer.report.drawing import COLUMN, PAGE, STYLE
from flaxformer.report.figures import save
from flaxformer.report.files import write
from flaxformer.report.heads_figure import attention_figure, heads_figure, lens_figure
from flaxformer.store.records import write_table

LAYERS, HEADS, SEEDS = 2, 3, 5
VALUES = np.random.default_rng(0).normal(size=(SEEDS, LAYERS, HEADS))
LENS = np.random.default_rng(1).uniform(1, 3, size=(SEEDS, LAYERS + 1))


def study_with(folder, metrics):
    """The results of a study of one arm; `metrics(seed)` are added to those of a run."""
    store = fill(folder / "study", tiny(axes=(), claims=(), seeds=range(SEEDS)), lambda trial: 1.0)
    rows = store.rows().values()
    [path] = store.groups.glob("*")
    write_table(path, [dataclasses.replace(row, metrics={**row.metrics, **metrics(row["seed"])}) for row in rows])
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A study of one arm whose runs have a number per head, and the losses of the logit lens."""

    def metrics(seed):
        own = {f"score/blocks/{layer}/attention/heads/{head}": float(VALUES[seed, layer, head])
               for layer in range(LAYERS) for head in range(HEADS)}  # fmt: skip
        own |= {f"initial_{name}": 0.0 for name in own}
        return own | {f"logit_lens/loss/{depth}": float(LENS[seed, depth]) for depth in range(LAYERS + 1)}

    return study_with(tmp_path_factory.mktemp("runs"), metrics)


def test_grids_are_means_over_seeds_of_ranked_heads(store):
    [grid] = heads.head_grids(analyse(store))
    assert (grid.quantity, grid.is_ranked) == ("score", True)
    assert list(grid.layers) == ["blocks/0/attention", "blocks/1/attention"]
    for layer, own in enumerate(grid.layers.values()):
        for rank, found in enumerate(own):
            values = [sorted(VALUES[seed, layer], reverse=True)[rank] for seed in range(SEEDS)]
            half = stats.t.ppf(0.975, SEEDS - 1) * statistics.stdev(values) / SEEDS**0.5
            np.testing.assert_allclose(found.mean, np.mean(values))
            np.testing.assert_allclose([found.low, found.high], [found.mean - half, found.mean + half])


def test_lens_is_a_mean_per_depth(store):
    found = heads.lens_curves(analyse(store))
    assert list(found) == ["baseline"]
    np.testing.assert_allclose([one.mean for one in found["baseline"]], LENS.mean(0))


@pytest.mark.long
def test_the_report_shows_both_figures_with_descriptions(store):
    write(store)
    page = (store.root / "report.html").read_text()
    assert "<h2>Heads</h2>" in page
    assert "<h2>Logit lens</h2>" in page
    assert "Numbers per head: score in blocks/0/attention up to" in page
    assert "Logit lens: baseline from" in page
    assert {"heads.svg", "heads.pdf", "lens.png"} <= {path.name for path in (store.root / "figures").iterdir()}


def test_a_study_without_such_numbers_has_no_such_figures(tmp_path):
    analysis = analyse(fill(tmp_path / "study", tiny(axes=(), claims=(), seeds=range(2)), lambda trial: 1.0))
    assert heads.head_grids(analysis) == []
    assert heads_figure([]) is None
    assert lens_figure(heads.lens_curves(analysis), "nats") is None
    assert attention_figure({}) is None


@pytest.mark.long
@pytest.mark.parametrize("width", [COLUMN, PAGE])
def test_figures_have_colours_for_dark_pages_and_texts_within_their_frame(store, tmp_path, width):
    analysis = analyse(store)
    with mpl.rc_context(STYLE):
        weights = np.tril(np.random.default_rng(2).dirichlet(np.ones(7), size=(2, 7)))
        figures = {
            "heads": heads_figure(heads.head_grids(analysis) * 3, width),
            "lens": lens_figure(heads.lens_curves(analysis), "nats", width),
            "maps": attention_figure({f"blocks/{n}/attention/weights": weights for n in range(2)}, width, "abcdefg"),
        }
        for name, figure in figures.items():
            used = {colour.lower() for colour in re.findall(r"#([0-9a-fA-F]{6})", save(figure, tmp_path, name))}
            assert used <= {colour.removeprefix("#") for colour in DARK} | {"ffffff"}, name
            FigureCanvasAgg(figure).draw()
            frame = figure.bbox
            for text in figure.findobj(mpl.text.Text):
                box = text.get_window_extent()
                if text.get_text() and text.get_visible():
                    assert min(box.x0 - frame.x0, frame.x1 - box.x1) >= -1, (name, text.get_text())


def test_cells_of_an_attention_map_are_as_opaque_as_their_weights():
    weights = np.array([[[1.0, 0.0], [0.25, 0.75]]])
    [ax] = attention_figure({"blocks/0/attention/weights": weights}).axes
    opacity = {}
    for patch in ax.patches:
        corners = patch.get_path().vertices.reshape(-1, 5, 2)
        opacity |= {tuple((own.min(0) + 0.5).astype(int)): patch.get_alpha() for own in corners}
    assert opacity == {(0, 0): 1.0, (0, 1): 0.25, (1, 1): 0.75}  # key, query
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    with pytest.raises(ValueError, match=r"have shape \[1, 1, 2, 2\]; expected \[heads, queries, keys\]"):
        attention_figure({"blocks/0/attention/weights": weights[None]})


MAPS = np.tril(np.random.default_rng(3).dirichlet(np.ones(5), size=(SEEDS, 10, 2, 3)))
"""Attention weights by seed, layer, head, query and key, for more layers than a figure has."""


@pytest.fixture(scope="module")
def store_of_maps(tmp_path_factory):
    """A study of one arm whose runs have attention maps, in no order of heads, queries and keys."""

    def metrics(seed):
        return {
            f"attention_map/blocks/{layer}/attention/weights/{head}/{query}/{key}": float(value)
            for (layer, head, query, key), value in reversed(list(np.ndenumerate(MAPS[seed])))
        }

    return study_with(tmp_path_factory.mktemp("runs"), metrics)


def test_maps_are_means_over_seeds_of_heads_ranked_by_distance(store_of_maps):
    [(name, found)] = maps.attention_maps(analyse(store_of_maps)).items()
    assert name == "baseline"
    assert list(found) == [f"blocks/{layer}/attention/weights" for layer in range(10)]
    for layer in range(10):
        wanted = np.zeros((2, 3, 5))
        for own in MAPS[:, layer]:
            distance = [sum(own[h, t, s] * abs(t - s) for t in range(3) for s in range(5)) for h in range(2)]
            wanted += own[np.argsort(distance)] / SEEDS
        np.testing.assert_allclose(found[f"blocks/{layer}/attention/weights"], wanted, rtol=1e-12)


@pytest.mark.long
def test_the_report_shows_maps_of_some_layers_with_a_caption(store_of_maps):
    write(store_of_maps)
    page = (store_of_maps.root / "report.html").read_text()
    assert "<h2>Attention maps</h2>" in page
    assert "Attention weights of baseline" in page
    assert "Of 10 layers, 8 are drawn." in page
    assert "Attention maps of baseline. Mean distance from query to key per head: blocks/0/attention/weights" in page
    drawn = maps.drawn_maps(analyse(store_of_maps))["baseline"]
    assert len(drawn) == 8
    assert {"blocks/0/attention/weights", "blocks/9/attention/weights"} <= drawn.keys()
