"""Variance between seeds by source of randomness: the study, its numbers, and its table."""

import numpy as np
import pytest
from msgspec.structs import replace
from study.tiny import BASELINE, fill, tiny

from flaxformer.analysis import variance_of_seeds
from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.noise import sd_interval, seed_variances
from flaxformer.core.paths import replace_at
from flaxformer.report import markdown, tables
from flaxformer.report.document import document
from flaxformer.study import Axis
from flaxformer.study.identity import fingerprints, recipe
from flaxformer.system.errors import UserError
from flaxformer.training import Seeds

DROPOUT = replace_at(BASELINE, {"model.dropout": 0.1, "seed": 7})
SPREADS = {"together": 3.0, "initialisation": 2.0, "data order": 1.0, "dropout": 0.5}


def test_each_arm_varies_one_source_and_fixes_the_others_at_the_seed_of_the_run():
    study = variance_of_seeds(DROPOUT, seeds=4)
    assert [*study.seeds] == [0, 1, 2, 3]
    assert {arm.labels["varied"]: arm.run.seeds for arm in study.arms()} == {
        "together": Seeds(),
        "initialisation": Seeds(data=7, dropout=7),
        "data order": Seeds(init=7, dropout=7),
        "dropout": Seeds(init=7, data=7),
    }


def test_a_model_without_dropout_has_no_arm_for_it():
    labels = [arm.labels["varied"] for arm in variance_of_seeds(BASELINE).arms()]
    assert labels == ["together", "initialisation", "data order"]
    labels = [arm.labels["varied"] for arm in variance_of_seeds(BASELINE, sources=["dropout"]).arms()]
    assert labels == ["together", "dropout"]


def test_the_report_has_the_standard_deviation_of_each_source(tmp_path):
    study = variance_of_seeds(DROPOUT, seeds=5)
    store = fill(tmp_path, study, lambda trial: SPREADS[trial.arm.labels["varied"]] * trial.seed - 5)
    analysis = analyse(store)
    found = {one.labels["varied"]: one for one in seed_variances(analysis.study, analysis.arms)}
    sd = np.std(range(5), ddof=1)
    for name, size in SPREADS.items():
        np.testing.assert_allclose([found[name].sd, found[name].share], [size * sd, size**2 / 9])
        assert found[name].low < found[name].sd < found[name].high
    assert found["together"].sources == ("initialisation", "data order", "dropout")
    assert found["dropout"].sources == ("dropout",)
    page = markdown.render(document(analysis))
    assert "## Variance by source of randomness" in page
    assert "| varied data order | data order | 1.6" in page


def test_other_studies_have_no_such_table(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(), lambda trial: trial.seed))
    assert not tables.variances(analysis).in_form("page").rows


def test_the_interval_of_a_standard_deviation_covers_it_at_its_level():
    rng = np.random.default_rng(0)
    sds = rng.normal(size=(4000, 6)).std(axis=1, ddof=1)
    covered = [low < 1 < high for low, high in (sd_interval(sd, 6) for sd in sds)]
    assert abs(np.mean(covered) - 0.95) < 0.012


def test_an_axis_over_the_seed_of_a_source_is_an_ordinary_axis():
    study = tiny(axes=[Axis("seeds.init", {"follows": None, "fixed": 5})], claims=())
    arms = {arm.name: arm for arm in study.arms()}
    assert arms["init=fixed"].run.seeds == Seeds(init=5)
    assert study.baseline_label(study.axes[0]) == "follows"


def test_the_fingerprint_of_a_run_with_the_default_seeds_is_that_of_earlier_results():
    trial = tiny().trials()[0]
    own = recipe(trial, {}, {})
    assert "seeds" not in own.run
    assert fingerprints(replace(own, semantics=2), [0]) == ("5e5fb9dae7f63c19",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sources": ["order"]}, "sources has 'order'"),
        ({"seeds": 1}, "seeds are .0.; expected at least 2"),
        ({"run": replace_at(BASELINE, {"seeds.data": 1})}, "run.seeds are {'data': 1}; expected None"),
    ],
)
def test_what_cannot_be_decomposed_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        variance_of_seeds(**({"run": BASELINE} | arguments))


def test_an_arm_whose_seeds_are_all_fixed_is_refused():
    levels = {"none": Seeds(), "all": Seeds(init=1, data=1, dropout=1)}
    with pytest.raises(UserError, match=r"arm 'seeds=all' has .*its 3 seeds are the same run"):
        tiny(axes=[Axis("seeds", levels, name="seeds")], claims=())
    tiny(axes=[Axis("seeds", levels, name="fix")], seeds=[0], claims=())
