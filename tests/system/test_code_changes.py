"""Changed user code and results of older code, from the command line: studies, jobs and probes."""

import contextlib
import json
import re
import sys

import polars as pl
import pytest
from rich.console import Console
from study.tiny import FILE, cache_folder, kept_programs

from flaxformer.claims.case import find_cases
from flaxformer.claims.run import run_case
from flaxformer.cli import main
from flaxformer.runner.execution import Execution
from flaxformer.store.store import Store

OWN = '''
import optax

class Own(AdamW):
    """An optimizer of one's own."""

    def direction(self):
        return optax.scale_by_adam(b1=0.9, b2=0.99)

'''
STUDY = FILE.replace("\nstudy = Study(", OWN + "study = Study(").replace("optimizer=AdamW(", "optimizer=Own(")
STUDY = STUDY.replace('        Axis("model.norm", {"pre": PRE, "post": POST}),\n', "")
STUDY = STUDY[: STUDY.index("    claims=[")] + ")\n"
JOB = f"""
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training
{OWN}
run = Run(
    model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
    task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
    optimizer=Own(),
    training=Training(steps=4, evaluate_every=2),
)
"""
CASE = """
from flaxformer.claims import Case
from flaxformer.study import Claim, Probe

def twice(seed):
    return 2.0 * (seed + 1)

case = Case(
    claim="c", source="s",
    evidence=[Probe(name="p", question="q", measure=lambda seed: {"two": twice(seed)}, seeds=range(2),
                    claims=[Claim("c", higher={"quantity": "two"}, than=0)])],
)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))
    with kept_programs(cache_folder(tmp_path_factory)):
        yield tmp_path


def call(capsys, *words):
    code = main(list(map(str, words)))
    found = capsys.readouterr()
    assert "Traceback" not in found.out + found.err
    return code, found.out, found.err


@pytest.mark.slow
def test_study_with_changed_code_is_refused_kept_or_retrained(folder, capsys):
    file, out = folder / "tiny.py", folder / "out"
    file.write_text(STUDY)
    assert call(capsys, "run", file, "--seeds", 1, "--output", out)[0] == 0
    before = pl.read_parquet(out / "results.parquet")
    assert call(capsys, "run", file, "--seeds", 1, "--output", out)[0] == 0
    file.write_text(STUDY.replace("b1=0.9", "b1=0.5"))
    code, _, err = call(capsys, "run", file, "--seeds", 1, "--output", out)
    assert code == 2
    assert "2 results of 2 arms" in err
    assert "tiny.py: Own (changed)" in err
    code, shown, _ = call(capsys, "run", file, "--seeds", 1, "--output", out, "--on-code-change", "keep")
    assert code == 0
    assert "results of the earlier code were kept: 2" in " ".join(shown.split())
    kept = pl.read_parquet(out / "results.parquet")
    different = [name for name in before.columns if kept[name].to_list() != before[name].to_list()]
    assert not different
    page = (out / "report.html").read_text()
    assert "results of the earlier code were kept: 2" in page
    copied = re.findall(r"flaxformer run code/([0-9a-f]+)/tiny\.py", page)
    texts = [(out / "code" / one / "tiny.py").read_text() for one in copied]
    assert texts == [STUDY, STUDY.replace("b1=0.9", "b1=0.5")]
    file.write_text(STUDY.replace("b1=0.9", "b1=0.4"))
    code, shown, _ = call(capsys, "run", file, "--seeds", 1, "--output", out, "--on-code-change", "retrain")
    assert code == 0
    assert "2 runs to train" in shown
    after = pl.read_parquet(out / "results.parquet")
    assert after["validation_loss"].to_list() != before["validation_loss"].to_list()
    assert len(pl.read_parquet(out / "superseded/1.parquet")) == 2


@pytest.mark.slow
def test_copied_study_gives_equal_results(folder, capsys):
    (folder / "tiny.py").write_text(
        STUDY.replace("import optax\n", "import optax\nfrom beside import B1\n").replace("0.9, ", "B1, ")
    )
    (folder / "beside.py").write_text("B1 = 0.7\n")
    assert call(capsys, "run", "tiny.py", "--seeds", 1, "--output", "out")[0] == 0
    [copied] = (folder / "out/code").iterdir()
    (folder / "beside.py").write_text("B1 = 0.1\n")
    assert call(capsys, "run", copied / "tiny.py", "--seeds", 1, "--output", "again")[0] == 0
    first, again = (Store(folder / name).read_declaration() for name in ("out", "again"))
    assert first.recipes == again.recipes
    same = [
        pl.read_parquet(folder / name / "results.parquet")["validation_loss"].to_list() for name in ("out", "again")
    ]
    assert same[0] == same[1]


@pytest.mark.slow
def test_job_with_changed_code_is_refused_kept_or_retrained(folder, capsys):
    file, out = folder / "job.py", folder / "out"
    file.write_text(JOB)
    assert call(capsys, "train", file, "--output", out)[0] == 0
    first = (out / "log.jsonl").read_text()
    file.write_text(JOB.replace("b1=0.9", "b1=0.5").replace("An optimizer", "One optimizer"))
    code, _, err = call(capsys, "train", file, "--output", out)
    assert code == 2
    assert "job.py: Own (changed)" in err
    assert call(capsys, "train", file, "--output", out, "--on-code-change", "keep")[0] == 0
    assert [one["decision"] for one in json.loads((out / "config.json").read_text())["code_changes"]] == ["keep"]
    file.write_text(JOB.replace("b1=0.9", "b1=0.4"))
    assert call(capsys, "train", file, "--output", out, "--on-code-change", "retrain")[0] == 0
    assert (out / "superseded/1/log.jsonl").read_text().splitlines()[0] == first.splitlines()[0]
    losses = [json.loads(line).get("loss") for line in (out / "log.jsonl").read_text().splitlines()]
    assert losses != [json.loads(line).get("loss") for line in first.splitlines()]


def test_probe_with_changed_code_is_refused_kept_or_measured_again(folder):
    (folder / "cases").mkdir()
    file = folder / "cases/01_two.py"

    def run(**how):
        [case] = find_cases(folder / "cases")
        with contextlib.closing(open("/dev/null", "w")) as nowhere:
            return run_case(case, folder / "out", Execution(**how), False, Console(file=nowhere))

    def mean(outcome):
        return outcome.analyses[0][1].claims[0].judgement.effect.mean

    file.write_text(CASE)
    assert mean(run()) == 3.0
    file.write_text(CASE.replace("2.0 *", "4.0 *"))
    refused = run()
    assert "01_two.py: twice (changed)" in refused.failure
    kept = run(on_code_change="keep")
    assert (kept.failure, mean(kept)) == ("", 3.0)
    assert mean(run()) == 3.0
    file.write_text(CASE.replace("2.0 *", "6.0 *"))
    assert mean(run(on_code_change="retrain")) == 9.0


TEXT_JOB = """
from pathlib import Path

import jax.numpy as jnp
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.tasks import TextFiles
from flaxformer.training import Run, Training
from shape import bend

class Bent(Dense):
    def apply(self, weights, x, context):
        return bend(super().apply(weights, x, context))

run = Run(
    model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Bent(d_ff=11)),
    task=TextFiles(path=str(Path(__file__).parent / "text.txt"), length=16, batch_size=2, evaluation_batches=2),
    training=Training(steps=2),
)
"""


@pytest.mark.slow
def test_run_with_user_classes_generates_from_its_folder_alone(folder, capsys):
    (folder / "text.txt").write_text("to be or not to be " * 200)
    (folder / "shape.py").write_text("def bend(x):\n    return 0.5 * x\n")
    (folder / "job.py").write_text(TEXT_JOB.replace("Path(__file__).parent", f"Path({str(folder)!r})"))
    assert call(capsys, "train", "job.py", "--output", "out", "--samples", 0)[0] == 0
    for name in ("job.py", "shape.py"):
        (folder / name).unlink()
    for name in [name for name in sys.modules if name == "shape" or name.startswith("job@")]:
        del sys.modules[name]
    code, shown, err = call(capsys, "generate", "out", "--prompt", "to", "--tokens", 3, "--trust-code")
    assert code == 0, err
    assert shown.startswith("to")
