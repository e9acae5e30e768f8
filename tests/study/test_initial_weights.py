"""Weights that a run starts from: what is loaded and what is drawn, the identity of such trials, and mistakes."""

import dataclasses
import json
import re

import numpy as np
import pytest
from study.tiny import BASELINE, RATE, cache_folder, kept_programs, results, run, tiny

import flaxformer
from flaxformer.checkpoint import Stop
from flaxformer.checkpoint.host_arrays import copy_to_host
from flaxformer.core import params
from flaxformer.core.paths import replace_at
from flaxformer.jobs import Job, train
from flaxformer.runner import partial_runs
from flaxformer.runner.events import Message, Progressed
from flaxformer.runner.execution import Execution
from flaxformer.runner.remaining import declare
from flaxformer.store.store import Store
from flaxformer.study import Axis, Study
from flaxformer.study.initial_weights import read
from flaxformer.study.plan import StudyPlan, declaration
from flaxformer.study.program_groups import groups
from flaxformer.system.errors import UserError
from flaxformer.training import From, LoRA, Rename, Training, start

SEEDS = (3, 5)
SOURCE = tiny(axes=(RATE,), claims=(), seeds=SEEDS)


@pytest.fixture(scope="module", autouse=True)
def shared_programs(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


def trained(root, study, **execution):
    """Train a study, and return its results."""
    for _ in run(study, Execution(**({"output": root, "devices": 1, "chunk_steps": 3} | execution))):
        pass
    return results(Store(root).rows())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("source") / "study"
    trained(root, SOURCE, keep="all")
    return root


@pytest.fixture(scope="module")
def drawn():
    """Weights of the baseline's model at another seed, by path."""
    return copy_to_host(start(replace_at(BASELINE, {"seed": 77})).params)


@pytest.fixture
def file(drawn, tmp_path):
    np.savez(tmp_path / "weights.npz", **drawn)
    return str(tmp_path / "weights.npz")


def arrays_of(root, rate, seed, step=None):
    return copy_to_host(flaxformer.results(root).weights({"rate": rate}, seed, step)[0])


def started(own):
    return copy_to_host(start(own.without_init, initial=read(own)).params)


def fine(root, **changes):
    """A study that starts from each arm of the source, and from nothing."""
    levels = {"fresh": None} | {rate: From(path=str(root), arm=f"rate={rate}") for rate in ("low", "high")}
    fields = {"name": "fine", "question": "Does it help?", "baseline": BASELINE, "seeds": SEEDS}
    return Study(**(fields | {"axes": [Axis("init", levels)]} | changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("init", "rate", "seed", "step"),
    [
        ({"arm": "rate=low"}, "low", 3, None),
        ({"arm": "rate=high", "trial_seed": 5}, "high", 5, None),
        ({"arm": "rate=high", "step": 3}, "high", 3, 3),
    ],
)
def test_all_weights_of_an_equal_model_are_those_of_the_trial(source, init, rate, seed, step):
    own = started(replace_at(BASELINE, {"seed": 3, "init": From(path=str(source), **init)}))
    expected = arrays_of(source, rate, seed, step)
    assert own.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(own[path], array)


@pytest.mark.long
def test_other_weights_are_drawn_as_without_a_source(file, drawn):
    changes = {"model.layers": 2, "model.norm": "sandwich", "seed": 3}
    larger = replace_at(BASELINE, changes | {"init": From(path=file, skip=("*/query",))})
    own, fresh = started(larger), started(replace_at(BASELINE, changes))
    without = {path for path, is_loaded in params.table(read(larger).is_loaded) if not is_loaded}
    assert {path.split("/")[1] for path in without if path.startswith("blocks")} == {"0", "1"}
    assert "blocks/0/attention/query" in without
    for path, array in own.items():
        np.testing.assert_array_equal(array, (fresh if path in without else drawn)[path])


def test_renamed_weights_take_another_place(file, drawn):
    init = From(path=file, rename=(Rename(old="blocks/0/*", new="blocks/1/*"),))
    own = started(replace_at(BASELINE, {"model.layers": 2, "init": init}))
    np.testing.assert_array_equal(own["blocks/1/attention/query"], drawn["blocks/0/attention/query"])
    assert (own["blocks/0/attention/query"] != drawn["blocks/0/attention/query"]).any()


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_file_of_named_arrays_is_a_source(drawn, tmp_path, suffix):
    path = tmp_path / f"weights.{suffix}"
    loaded = {name: array for name, array in drawn.items() if not name.startswith("head/")}
    if suffix == "npz":
        np.savez(path, **loaded)
    else:
        pytest.importorskip("safetensors.numpy").save_file(loaded, path)
    own, fresh = started(replace_at(BASELINE, {"init": From(path=str(path))})), started(BASELINE)
    for name, array in own.items():
        np.testing.assert_array_equal(array, loaded.get(name, fresh[name]))


@pytest.mark.slow
def test_a_job_is_a_source_and_can_start_from_one(source, tmp_path):
    first = replace_at(BASELINE, {"seed": 3, "init": From(path=str(source), arm="rate=low")})
    list(train(first, Job(output=tmp_path / "first"), Stop()))
    config = json.loads((tmp_path / "first" / "config.json").read_text())
    assert re.fullmatch("[0-9a-f]{16}", config["initial_weights"])
    again = list(train(first, Job(output=tmp_path / "first"), Stop()))
    assert again[0].step == first.training.steps
    second = replace_at(BASELINE, {"seed": 9, "init": From(path=str(tmp_path / "first"), step=6)})
    own, drawn = started(second), started(replace_at(BASELINE, {"seed": 3}))
    assert (own["head/matrix"] != drawn["head/matrix"]).any()
    with pytest.raises(UserError, match=r"which is not a study, and init\.arm"):
        read(replace_at(second, {"init.arm": "rate=low"}))


@pytest.mark.long
def test_a_study_starts_where_its_source_ended(source, tmp_path):
    found = trained(tmp_path / "fine", fine(source))
    before = results(Store(source).rows())
    for seed in SEEDS:
        fresh = found[f"init=fresh,seed={seed}"]
        assert fresh["initial_validation_loss"] == before[f"rate=low,seed={seed}"]["initial_validation_loss"]
        for rate in ("low", "high"):
            last = before[f"rate={rate},seed={seed}"]["validation_loss"]
            assert found[f"init={rate},seed={seed}"]["initial_validation_loss"] == last


@pytest.mark.slow
def test_sources_share_a_program_whatever_the_group_size(source, tmp_path):
    study = fine(source)
    assert sorted(len(group.trials) for group in groups(study.trials())) == [2, 4]
    alone, together = trained(tmp_path / "alone", study), trained(tmp_path / "together", study, group_size=3)
    for name, row in alone.items():
        np.testing.assert_allclose(row["validation_loss_curve"], together[name]["validation_loss_curve"], rtol=1e-5)


@pytest.mark.slow
def test_an_interrupted_study_is_resumed_bit_for_bit(source, tmp_path, monkeypatch):
    monkeypatch.setattr(partial_runs, "MIN_SECONDS_TO_SAVE", 0.0)
    adapter = LoRA(weights=("blocks/*/attention/query",), rank=2)
    study = fine(source, baseline=BASELINE.replace(adapter=adapter))
    events = run(study, Execution(output=tmp_path / "parts", devices=1, chunk_steps=1))
    for event in events:
        if isinstance(event, Progressed) and event.steps:
            break
    events.close()
    resumed = []
    for event in run(study, Execution(output=tmp_path / "parts", devices=1, chunk_steps=1)):
        resumed += [event.text] if isinstance(event, Message) else []
    assert any("resumed from step" in text for text in resumed), resumed
    assert results(Store(tmp_path / "parts").rows()) == trained(tmp_path / "whole", study)


def test_a_changed_source_is_another_trial_and_refused(file, drawn, tmp_path):
    study = fine(tmp_path, axes=(), baseline=BASELINE.replace(init=From(path=file)))
    store = Store(tmp_path / "out")
    before = declare(StudyPlan(study), store).trials
    assert declare(StudyPlan(study), store).trials == before
    np.savez(file, **(drawn | {"head/matrix": drawn["head/matrix"] + 1}))
    after = declaration(study).trials
    assert all(one.fingerprint != other.fingerprint for one, other in zip(before, after, strict=True))
    with pytest.raises(UserError, match=r"2 trials that started from weights that have changed since \(digests\)"):
        declare(StudyPlan(study), store)


def test_a_source_that_changes_after_the_declaration_is_not_used(file):
    with pytest.raises(UserError, match="which has changed since it was declared: 0123 -> "):
        read(BASELINE.replace(init=From(path=file)), expected="0123")


def test_runs_without_a_source_have_the_identity_that_they_had():
    recipe = declaration(dataclasses.replace(SOURCE)).recipes["rate=low"].run
    assert not {"init", "adapter"} & recipe.keys()
    assert not {"freeze", "rates"} & recipe["training"].keys()
    changed = replace_at(BASELINE, {"training": Training(steps=6, evaluate_every=3, freeze=("embedding/*",))})
    assert declaration(tiny(baseline=changed)).recipes != declaration(tiny()).recipes


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("init", "changes", "message"),
    [
        ({"path": "nowhere"}, {}, "init.path is 'nowhere', which does not exist"),
        ({"path": "nowhere.npz"}, {}, "init.path is 'nowhere.npz', which cannot be read: No such file"),
        ({"arm": "a=b"}, {}, "a file; expected no arm, trial_seed or step"),
        ({"skip": ("hed/*",)}, {}, r"init.skip has 'hed/\*', which matches no weight"),
        ({"rename": (Rename(old="layers/*", new="blocks/*"),)}, {}, r"init.rename.0.old is 'layers/\*', which is no"),
        ({"rename": (Rename(old="*", new="x/*"),)}, {}, "has no weight with a path of this model; it has: x/embedding"),
        (
            {"rename": (Rename(old="blocks/0/*_bias", new="x*"),)},
            {"model.d_model": 6},
            r"\[6, 8\] there, \[6, 6\] here",
        ),
        (
            {},
            {"model.d_model": 6},
            r"weights have other shapes:\n  embedding/tokens: \[6, 8\] there, \[6, 6\] here\n  b",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(file, init, changes, message):
    own = replace_at(BASELINE, changes | {"seed": 3, "init": From(**({"path": file} | init))})
    with pytest.raises(UserError, match=message):
        read(own)
    with pytest.raises(UserError, match=message):
        declaration(Study(name="s", question="q", baseline=own, seeds=SEEDS))


@pytest.mark.every(2, "long")
@pytest.mark.parametrize(
    ("init", "message"),
    [
        ({}, r"no arm is given and the study has 2; expected one, such as rate=low \(rate: low and high\)"),
        ({"arm": "low"}, "arm is 'low', where 'low' has no =; expected AXIS=LEVEL"),
        ({"arm": "rate=low", "trial_seed": 4}, "seed is 4; expected one of 3 and 5"),
        ({"arm": "rate=low", "step": 4}, r"init.step is 4; expected one of the steps in .*: 0, 3, 6"),
    ],
)
def test_a_trial_that_is_not_there_is_refused(source, init, message):
    with pytest.raises(UserError, match=message):
        read(replace_at(BASELINE, {"seed": 3, "init": From(path=str(source), **init)}))


def test_rename_fills_each_star():
    assert Rename(old="a/*/b/*", new="x/*/y/*").path("a/0/b/c/d") == "x/0/y/c/d"
    assert Rename(old="a", new="b").path("ab") is None
    with pytest.raises(UserError, match=r"Rename.new is 'b/\*'; expected as many \* as in old, 'a'"):
        Rename(old="a", new="b/*")


def test_a_start_without_its_weights_is_refused(file):
    with pytest.raises(UserError, match="and its weights are not given; expected start"):
        start(BASELINE.replace(init=From(path=file)))


@pytest.mark.slow
def test_adapters_are_merged_in_what_is_loaded(source, tmp_path):
    adapter = LoRA(weights=("blocks/*/attention/query",), rank=2)
    study = fine(
        source, axes=(), baseline=BASELINE.replace(adapter=adapter, init=From(path=str(source), arm="rate=low"))
    )
    trained(tmp_path / "adapted", study, keep="final")
    own = started(replace_at(BASELINE, {"seed": 5, "init": From(path=str(tmp_path / "adapted"))}))
    base = arrays_of(source, "low", 5)
    changed = {path for path, array in own.items() if (array != base[path]).any()}
    assert changed == {"blocks/0/attention/query"}
