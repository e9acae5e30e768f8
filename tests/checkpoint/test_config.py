"""The run that a folder stores: round trips, the classes that its file may name, and damaged files."""

import json

import pytest

from flaxformer.checkpoint import read_config, write_config
from flaxformer.checkpoint.config import FORMAT, NAME, classes_within, from_canonical
from flaxformer.components import LSTM, SANDWICH, Alibi, Attention, Dense, LearnedPositions, ReZero, RMSNorm, Rotary
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.core.canonical import canonical
from flaxformer.core.paths import replace_at
from flaxformer.core.struct import qualified_name
from flaxformer.system.digests import read_document, write_document
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy, ModularAddition, TwoTargetAverage
from flaxformer.training import AdamW, Run

COPY = Copy(symbols=5, length=3)
TINY = ModelConfig(vocabulary=7, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11))
RUNS = {
    "default": Run(),
    "placed": Run(model=TINY.replace(norm=SANDWICH, positions=Rotary(base=3.5)), task=COPY, seed=5),
    "recurrent": Run(model=recurrent_model(LSTM(), vocabulary=7), task=COPY),
    "learned": Run(model=TINY.replace(positions=LearnedPositions(max_length=31)), task=COPY),
    "residual": Run(
        model=TINY.replace(residual=ReZero(), positions=Alibi(), attention=Attention(heads=2, logit_cap=3.0)), task=COPY
    ),
    "attention alone": Run(
        model=TINY.replace(attention=Attention(query_key_norm=RMSNorm()), feed_forward=None), task=COPY
    ),
    "addition": Run(model=TINY, task=ModularAddition(modulus=5), optimizer=AdamW(clip=1)),
}


def test_a_changed_code_keeps_the_digest_of_missing_weights(tmp_path):
    """A resumed run whose source is gone has no digest to compare, and the folder keeps the one that it has."""
    write_config(tmp_path, RUNS["default"], {"mine.Norm": "old"}, initial_weights="digest")
    write_config(tmp_path, RUNS["default"], {"mine.Norm": "new"}, "keep", initial_weights=None)
    assert read_document(tmp_path / NAME)["initial_weights"] == "digest"
    assert read_document(tmp_path / NAME)["code"] == {"mine.Norm": "new"}


@pytest.mark.every(3)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_restored_run_is_equal(tmp_path, run):
    write_config(tmp_path / "run", run)
    write_config(tmp_path / "run", run)
    assert read_config(tmp_path / "run") == run
    assert type(read_config(tmp_path / "run").model) is type(run.model)


def test_every_class_that_a_run_may_hold_is_known():
    classes = classes_within(Run)
    assert {"Run", "ModelConfig", "LSTM", "Rotary", "ReZero", "Copy", "AdamW"} <= set(classes)
    for cls in classes.values():
        if not cls.__module__.startswith("flaxformer."):
            continue
        try:
            config = cls()
        except UserError:  # it has required fields
            continue
        assert from_canonical(canonical(config), classes) == config


def test_lists_of_a_file_become_tuples():
    assert from_canonical(canonical((1, (2.5, "a"), None)), {}) == (1, (2.5, "a"), None)


def test_another_run_in_the_same_folder_raises_an_error_that_lists_its_fields(tmp_path):
    write_config(tmp_path, Run())
    with pytest.raises(UserError, match=r"holds another run:\n  model.layers: \d+ -> 1\n  seed: 0 -> 3"):
        write_config(tmp_path, replace_at(Run(seed=3), {"model.layers": 1}))
    assert read_config(tmp_path) == Run()


def changed(**change):
    return canonical(RUNS["placed"]) | change


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(kind="os.system"), "run is of kind 'os.system'"),
        (changed(kind="Rum"), "run is of kind 'Rum'; did you mean 'Run'"),
        (
            changed(optimizer={"kind": "__main__.Slow"}),
            "run.optimizer is of kind '__main__.Slow', which a notebook defined",
        ),
        (changed(kind=None), "run is of kind None"),
        (changed(kind=["Run"]), r"run is of kind \['Run'\]"),
        (changed(optimizer={"kind": "Adamw"}), "run.optimizer is of kind 'Adamw'; did you mean 'AdamW'"),
        (changed(optimizer={"kind": "Copy"}), "run.optimizer, a Copy, has no 'batch_size'"),
        (changed(optimizer=canonical(COPY)), "Run.optimizer is .*; expected "),
        (changed(optimizer=3), "Run.optimizer is 3; expected "),
        (changed(sed=3), "run: Run has no field 'sed'; did you mean 'seed'"),
        (changed(self=3), "run: Run has no field 'self'"),
        (changed(seed=-1), "Run.seed is -1; expected a number at least 0"),
        (changed(seed=[1]), r"run.seed is \[1\]; expected one value"),
        ({k: v for k, v in changed().items() if k != "seed"}, "run, a Run, has no 'seed'; expected every field"),
        (canonical(COPY), "holds a Copy; expected a Run"),
    ],
)
def test_invalid_content_raises_a_user_error(tmp_path, data, message):
    write_document(tmp_path / "config.json", {"format": FORMAT, "run": data})
    with pytest.raises(UserError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is damaged"),
        (b"\xff", "is damaged"),
        (b'{"format": 1', "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"3", "is damaged"),
        (b'{"format": 2, "run": {}}', "is damaged [(]it has no digest[)]"),
    ],
)
def test_damaged_file_raises_a_user_error(tmp_path, text, message):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(UserError, match=message):
        read_config(tmp_path)


def test_file_of_another_format_raises_a_user_error(tmp_path):
    write_document(tmp_path / "config.json", {"format": 1, "run": {}})
    with pytest.raises(UserError, match=f"is in format 1; expected {FORMAT}"):
        read_config(tmp_path)


def test_folder_without_a_run_raises_a_user_error(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        read_config(tmp_path / "absent")


class Mine(Copy):
    """User-defined task."""


def test_user_classes_are_stored_by_qualified_name(tmp_path):
    run = RUNS["placed"].replace(task=Mine(symbols=5, length=3))
    write_config(tmp_path, run)
    path, name = tmp_path / "config.json", qualified_name(Mine)
    assert name.endswith("test_config.Mine")
    assert json.loads(path.read_text())["run"]["task"]["kind"] == name
    assert read_config(tmp_path) == run
    content = read_document(path)
    content["run"]["task"]["kind"] = "tasks.Shifted"
    write_document(path, content)
    with pytest.raises(UserError, match=r"run\.task is of kind 'tasks\.Shifted'"):
        read_config(tmp_path)
    assert read_config(tmp_path, {"tasks.Shifted": Mine}) == run


def test_user_class_does_not_replace_a_class_of_the_package():
    own = type("TwoTargetAverage", (Copy,), {"__module__": "mine@1234"})
    classes = classes_within(Run)
    assert (classes["TwoTargetAverage"], classes["mine.TwoTargetAverage"]) == (TwoTargetAverage, own)


def test_later_of_two_user_classes_with_one_name_is_used():
    first, second = (type("Twice", (Copy,), {"__module__": "notebook"}) for _ in range(2))
    assert first is not second
    assert classes_within(Run)["notebook.Twice"] is second
