"""`flaxformer claims`: selection of files, resumption, and the table."""

import json
import os
import re
import signal

import pytest

from flaxformer.analysis import analysis
from flaxformer.claims import Case
from flaxformer.claims.case import find_cases
from flaxformer.cli import main
from flaxformer.study import Claim, Probe
from flaxformer.system.errors import UserError

FILE = '''
"""A claim."""
from flaxformer.analysis import analysis
from flaxformer.claims import Case
from flaxformer.study import Claim, Probe


def measure(seed):
    with open({log!r}, "a") as file:
        file.write(f"{name} {{seed}}\\n")
    return {{"size": {size} + 0.1 * seed}}


case = Case(
    claim="The size of {name} is {size}.",
    source="A text, section 2",
    evidence=[
        Probe(
            name="size",
            question="How large?",
            measure=measure,
            seeds=range(5),
            claims=[Claim("it is below 3", lower={{"quantity": "size"}}, than=3)],
        )
    ],
    quick=[
        Probe(
            name="size",
            question="How large?",
            measure=measure,
            seeds=range(2),
            claims=[Claim("it is below 3", lower={{"quantity": "size"}}, than=3)],
        )
    ],
)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder of three claims that log their measurements; the third is false."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    own = tmp_path / "claims"
    own.mkdir()
    for number, (name, size) in enumerate({"small": 1, "medium": 2, "large": 5}.items(), 1):
        text = FILE.format(name=name, size=size, log=str(tmp_path / "log"))
        (own / f"{number:02d}_{name}.py").write_text(text)
    return own


@pytest.fixture
def claims(folder, capsys):
    """Run the command; return its exit code, output and errors."""

    def call(*arguments):
        code = main(["claims", *arguments, "--folder", str(folder)])
        out, err = capsys.readouterr()
        return code, " ".join(out.split()), " ".join(err.split())

    return call


def measured(folder):
    """Return the measurements so far, in order."""
    log = folder.parent / "log"
    return log.read_text().split("\n")[:-1] if log.exists() else []


@pytest.mark.long
def test_each_claim_is_measured_once_and_listed_in_one_table(claims, folder):
    code, out, err = claims()
    assert (code, err) == (0, "")
    assert measured(folder) == [f"{name} {seed}" for name in ("small", "medium", "large") for seed in range(5)]
    for name, size, verdict in (("small", 1, "supported"), ("medium", 2, "supported"), ("large", 5, "refuted")):
        assert f"The size of {name} is {size}." in out
        page = (folder.parent / f"runs/claims/{verdict and _number(name)}_{name}/size/report.html").read_text()
        assert verdict in page
    lines = (folder.parent / "runs/claims/claims.md").read_text().splitlines()
    assert len([line for line in lines if "it is below 3" in line]) == 3
    total, *_ = lines
    assert total == "3 tested statements: 3 estimates (2 supported, 1 refuted)."
    assert [word for line in lines[1:] for word in re.findall("supported|refuted|inconclusive", line)] == [
        "supported", "supported", "refuted",
    ]  # fmt: skip
    assert "A text, section 2" in lines[4]
    assert r"\begin{tabular}" in (folder.parent / "runs/claims/claims.tex").read_text()
    again = claims()
    assert again[0] == 0
    assert len(measured(folder)) == 15


@pytest.mark.long
def test_each_command_analyses_each_evidence_once(claims, folder, monkeypatch, capsys):
    own, analysed = analysis.judge_claims, []

    def judge(study, *arguments):
        analysed.append(study.recipes or study.measured_by)
        return own(study, *arguments)

    monkeypatch.setattr(analysis, "judge_claims", judge)
    for command in (claims, lambda: main(["report", str(folder.parent / "runs/claims")])):
        analysed.clear()
        command()
        assert len(analysed) == len({*map(str, analysed)}) == 3
    capsys.readouterr()


def _number(name):
    return {"small": "01", "medium": "02", "large": "03"}[name]


@pytest.mark.parametrize("names", [("2",), ("02",), ("medium",), ("02_medium",), ("02_medium.py",), ("2", "medium")])
def test_claims_are_selected_by_number_or_name(folder, names):
    assert [case.name for case in find_cases(folder, names)] == ["02_medium"]


def test_claims_are_ordered_by_number(folder):
    assert [case.number for case in find_cases(folder, ["large", "1"])] == [1, 3]


def test_quick_form_is_marked_and_has_its_own_folder(claims, folder):
    _, out, _ = claims("--quick", "small")
    assert measured(folder) == ["small 0", "small 1"]
    assert "weaker" in out
    assert (folder.parent / "runs/claims-quick/01_small/size/report.html").exists()
    assert "weaker" in (folder.parent / "runs/claims-quick/claims.md").read_text()
    _, out, _ = claims("small")
    assert "weaker" not in out
    assert len(measured(folder)) == 7


@pytest.mark.long
@pytest.mark.parametrize(("text", "name"), [("7:10", "claims-seeds-7to10"), ("7,8,9", "claims-seeds-7-8-9")])
def test_other_seeds_have_a_folder_of_their_own(claims, folder, text, name):
    claims("small")
    claims("small", "--seeds", text)
    assert measured(folder)[5:] == ["small 7", "small 8", "small 9"]
    assert (folder.parent / f"runs/{name}/01_small/size/report.html").exists()
    claims("small", "--quick", "--seeds", "3,4")
    assert (folder.parent / "runs/claims-quick-seeds-3-4/01_small/size/report.html").exists()


def test_exact_probes_keep_their_seed(claims, folder):
    file = folder / "01_small.py"
    file.write_text(file.read_text().replace("seeds=range(5)", "seeds=[0],\n            exact=True"))
    code, *_ = claims("small", "--seeds", "7:10")
    assert (code, measured(folder)) == (0, ["small 0"])


@pytest.mark.slow
def test_facts_are_counted_apart_from_estimates(claims, folder):
    for name in ("01_small", "03_large"):
        file = folder / f"{name}.py"
        file.write_text(file.read_text().replace("seeds=range(5)", "seeds=[0],\n            exact=True"))
    _, out, _ = claims()
    total = "3 tested statements: 2 facts (1 holds, 1 does not hold); 1 estimate (1 supported)."
    assert total in out
    root = folder.parent / "runs/claims"
    assert total in (root / "claims.md").read_text()
    assert f"3 claims in {total}" in (root / "index.html").read_text()
    _, out, _ = claims("--quick")
    assert "3 tested statements: 3 estimates (" in out


def test_time_is_summed_over_launches(claims, folder):
    claims("small")
    claims("small")
    lines = (folder.parent / "runs/claims/01_small/time.jsonl").read_text().splitlines()
    assert [json.loads(line)["evidence"] for line in lines] == ["size"]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("broken", "message"),
    [("    return 1 / 0\n", "ZeroDivisionError"), ("    return {'another': 1.0}\n", "names the quantity 'size'")],
)
def test_failed_claim_is_reported_and_others_continue(claims, folder, broken, message):
    path = folder / "02_medium.py"
    path.write_text(re.sub(r"    return \{\"size\".*\n", broken, path.read_text()))
    code, out, _ = claims()
    assert code == 1
    assert message in out
    assert "failed" in out
    assert "Traceback" not in out
    assert (folder.parent / "runs/claims/03_large/size/report.html").exists()


def test_corrected_claim_continues(claims, folder):
    path = folder / "02_medium.py"
    text = path.read_text()
    path.write_text(re.sub(r"    return \{\"size\".*\n", "    return 1 / (seed - 3)\n", text))
    assert claims("medium")[0] == 1
    path.write_text(text)
    assert claims("medium")[0] == 0


def test_a_pipe_in_place_of_a_file_does_not_stop_a_report(claims, folder, capsys):
    claims("1")
    root = folder.parent / "runs/claims"
    files = [path for path in root.glob("*/**/*") if path.suffix in (".json", ".jsonl", ".head")]
    assert len(files) > 5
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the report waits for the end of a pipe"))
    try:
        for path in files:
            content = path.read_bytes()
            path.unlink()
            os.mkfifo(path)
            signal.alarm(60)
            assert main(["report", str(root)]) in (0, 2), path
            signal.alarm(0)
            path.unlink()
            path.write_bytes(content)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("smal",), "no claim is called 'smal'; did you mean 'small'"),
        (("7",), "no claim is called '7'"),
    ],
)
def test_unknown_claim_raises_an_error(claims, arguments, message):
    code, _, err = claims(*arguments)
    assert code == 2
    assert message in err


def test_folder_without_claims_raises_an_error(tmp_path):
    with pytest.raises(UserError, match="holds no claims; expected a folder of files"):
        find_cases(tmp_path)


def test_case_without_claims_raises_an_error():
    probe = Probe(name="p", question="?", measure=lambda seed: {})
    with pytest.raises(UserError, match="evidence claims nothing"):
        Case(claim="c", source="s", evidence=[probe])
    decided = Probe(
        name="p", question="?", measure=lambda seed: {}, claims=[Claim("c", lower={"quantity": "x"}, than=0)]
    )
    with pytest.raises(UserError, match="expected different names"):
        Case(claim="c", source="s", evidence=[decided, decided])


def test_quick_form_defaults_to_the_probes():
    decided = Probe(
        name="p", question="?", measure=lambda seed: {}, claims=[Claim("c", lower={"quantity": "x"}, than=0)]
    )
    assert Case(claim="c", source="s", evidence=[decided]).quick == [decided]


@pytest.mark.long
def test_claims_are_replicated_at_fresh_seeds(claims, folder, capsys):
    claims("small", "large")
    assert main(["replicate", "runs/claims", "--folder", str(folder)]) == 0
    assert measured(folder)[10:] == [f"{name} {seed}" for name in ("small", "large") for seed in range(1000, 1005)]
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 verdicts replicate; it is below 3: supported, then refuted" in out  # the numbers grow with the seed
    root = folder.parent / "runs/claims-replication"
    assert (root / "replication.md").read_text().count("| it is below 3 |") == 2
    assert (root / "index.html").exists()
    assert main(["replicate", "runs/claims", "--folder", str(folder), "--seeds", "2:9"]) == 2
    assert "already used the seeds 2, 3, 4" in capsys.readouterr().err
