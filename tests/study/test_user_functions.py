"""Mistakes in a user's functions and files: one message with file, line, function and seed, and nothing lost."""

import pytest
from study.tiny import LOWER, RATE, fill, tiny

from flaxformer.cli import main
from flaxformer.runner.launch import derive_numbers
from flaxformer.runner.probes import run_probe
from flaxformer.store.store import Store
from flaxformer.study import Claim, Probe
from flaxformer.study.plan import check_measure
from flaxformer.system.errors import UserError

CLAIM = Claim("it is small", lower={"quantity": "size"}, than=9)


def divides(divisor):
    return 1 / divisor


def fails(seed):
    return {"size": divides(seed - 2)}


RESULTS = {
    "none": (None, "returns None at seed 0; expected a dict of numbers by name"),
    "text": ("size", "returns 'size' at seed 0; expected a dict of numbers by name"),
    "key": ({3: 1.0}, "a name that {} returns is 3; expected text"),
    "value": ({"size": "large"}, "returns 'size' = 'large' at seed 0; expected a number"),
    "list": ({"size": [1, 2]}, r"returns 'size' = \[1, 2\] at seed 0; expected a number"),
    "escape": ({"\x1b[2J": 1.0}, "a name that {} returns is .* expected printable text"),
    "other": ({"length": 1.0}, "names the quantity 'size'"),
}


@pytest.mark.parametrize(("result", "message"), RESULTS.values(), ids=RESULTS)
def test_results_of_measure_are_numbers_by_name(tmp_path, result, message):
    probe = Probe(name="p", question="How large?", measure=lambda seed: result, claims=[CLAIM])
    with pytest.raises(UserError, match=message.format("measure")) as error:
        list(run_probe(probe, Store(tmp_path)))
    assert str(error.value).isprintable()


@pytest.mark.parametrize(("result", "message"), RESULTS.values(), ids=RESULTS)
def test_results_of_derive_are_numbers_by_name(tmp_path, result, message):
    study = tiny(axes=(RATE,), seeds=range(4), claims=(CLAIM,), derive=lambda rows: result)
    store = fill(tmp_path, tiny(axes=(RATE,), seeds=range(4), claims=(LOWER,)), lambda trial: 2.0)
    with pytest.raises(UserError, match=message.format("derive")):
        derive_numbers(study, store.rows())


def test_a_failing_measure_keeps_the_seeds_before_it(tmp_path):
    probe = Probe(name="p", question="How large?", measure=fails, claims=[CLAIM])
    line = divides.__code__.co_firstlineno + 1
    with pytest.raises(UserError) as error:
        list(run_probe(probe, Store(tmp_path)))
    assert f"measure failed at seed 2: {__file__}, line {line}, in divides: ZeroDivisionError" in str(error.value)
    assert [row["seed"] for row in Store(tmp_path).measurements(probe.declaration())] == [0, 1]


def test_a_failing_derive_is_named(tmp_path):
    def derive(rows):
        return {"size": rows["rate=slow"]["validation_loss"]}

    study = tiny(axes=(RATE,), seeds=range(4), claims=(CLAIM,), derive=derive)
    store = fill(tmp_path, tiny(axes=(RATE,), seeds=range(4), claims=(LOWER,)), lambda trial: 2.0)
    with pytest.raises(UserError, match=r"derive failed at seed 0: .*functions.py, line \d+, in derive: KeyErr"):
        derive_numbers(study, store.rows())


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (
            lambda params, run: {"size": params.nothing},
            r"failed with the baseline, .*in <lambda>: AttributeError",
        ),
        (lambda params, run: None, "measure returns None; expected a dict of scalars by name"),
        (lambda params, run: {3: 1.0}, "expected a dict of scalars by name"),
        (lambda params, run: "size", "measure returns 'size'; expected a dict"),
    ],
)
def test_a_wrong_measure_of_a_study_is_found_before_training(measure, message):
    with pytest.raises(UserError, match=message):
        check_measure(tiny(axes=(RATE,), claims=(), measure=measure))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"import sys\nsys.exit(0)\n", "study.py ends the program (exit code 0); expected a file that"),
        (b"raise SystemExit('done')\n", "ends the program (exit code done)"),
        (b"study = 1\0\n", "study.py, line "),
        (b"def f(:\n", "study.py, line 1: "),
        (b"1 / 0\n", "study.py, line 1: ZeroDivisionError"),
        (b"\xff\xfe", "study.py, line "),
    ],
)
def test_a_wrong_file_is_one_message(tmp_path, monkeypatch, capsys, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_bytes(text)
    code = main(["run", "study.py"])
    out, err = capsys.readouterr()
    said = " ".join(err.split())
    assert code == 2
    assert message in said
    assert "None" not in said
    assert "Traceback" not in out + err
