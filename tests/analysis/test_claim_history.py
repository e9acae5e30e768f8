"""The log of declarations: what it records, which claims count as declared before their data, and changes to it."""

import dataclasses
import io
import itertools
import json
import shutil

import pytest
from rich.console import Console
from study.tiny import LOWER, RATE, fill, tiny

import flaxformer
from flaxformer.analysis.analysis import analyse
from flaxformer.cli import main
from flaxformer.cli.status import estimates
from flaxformer.report import tables, terminal, verdicts
from flaxformer.report.files import write
from flaxformer.runner.launch import derive_numbers
from flaxformer.runner.probes import run_probe
from flaxformer.store import declaration_log, records
from flaxformer.store.declaration_log import HEAD, NAME, read
from flaxformer.store.declarations import declare
from flaxformer.store.store import Store, read_lines
from flaxformer.study import Axis, Claim, Probe
from flaxformer.study.plan import declaration
from flaxformer.system import digests

HIGH = Claim("high is worse than low", higher={"rate": "high"}, than={"rate": "low"})
EFFECTS = {"low": 2.0, "high": 2.3}


def loss(trial):
    """Losses for which `HIGH` is supported and `LOWER` refuted."""
    return EFFECTS[trial.arm.labels["rate"]] + 0.01 * (trial.seed % 3) * (1 + len(trial.arm.name) % 2)


def study(*claims, **changes):
    return tiny(**{"axes": (RATE,), "seeds": range(6), "claims": claims} | changes)


def declare_only(root, own):
    store = Store(root)
    with store.locked():
        declare(store, declaration(own))
    return store


def entries(root):
    return read_lines(root / NAME)


def test_a_claim_that_is_declared_first_is_confirmatory(tmp_path):
    [claim] = analyse(fill(tmp_path, study(HIGH), loss)).claims
    assert not claim.is_exploratory
    assert verdicts.when_declared(claim) == "before its data"
    assert verdicts.verdict_of(claim) == "supported"


CHANGES = {
    "sign": (LOWER, HIGH),
    "text": (HIGH, dataclasses.replace(HIGH, text="a high rate is worse")),
    "threshold": (HIGH, dataclasses.replace(HIGH, by=0.1)),
    "margin": (
        Claim("alike", equal={"rate": "high"}, to={"rate": "low"}, within=0.1),
        Claim("alike", equal={"rate": "high"}, to={"rate": "low"}, within=0.5),
    ),
    "number": (
        Claim("below", lower={"rate": "high"}, than=2.0),
        Claim("below", lower={"rate": "high"}, than=3.0),
    ),
    "arm": (
        Claim("below", lower={"rate": "low"}, than=2.1),
        Claim("below", lower={"rate": "high"}, than=2.1),
    ),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_a_claim_changed_after_its_data_is_exploratory_and_the_former_one_is_shown(tmp_path, before, after):
    fill(tmp_path, study(before), loss)
    was = analyse(Store(tmp_path)).claims[0].judgement.verdict
    analysis = analyse(declare_only(tmp_path, study(after)))
    [claim], [former] = analysis.claims, analysis.withdrawn
    assert claim.is_exploratory
    assert verdicts.when_declared(claim) in ("after 12 of 12 results", "after 6 of 6 results")
    assert verdicts.verdict_of(claim).startswith("exploratory: ")
    assert (former.text, former.judgement.verdict) == (before.text, was)
    assert verdicts.marked_verdict(former) == (f"· withdrawn: {was}", "dim")
    printed = [terminal.claim_line(one, is_alone=False).plain for one in (claim, former)]
    assert [line.split(":")[0] for line in printed] == ["· exploratory", "· withdrawn"]
    answer = verdicts.verdict(analysis)
    assert answer.startswith("No claim was declared before its data.")
    assert f"Withdrawn after its data: {before.text} ({was}" in answer
    cells = " ".join(tables.declarations(analysis).in_form("page").rows[-1])
    assert ("rule changed: " in cells) if before.text == after.text else ("claim withdrawn: " in cells)


def test_a_claim_changed_before_its_data_leaves_no_trace_in_its_verdict(tmp_path):
    declare_only(tmp_path, study(LOWER))
    analysis = analyse(fill(tmp_path, study(HIGH), loss))
    assert [verdicts.when_declared(claim) for claim in analysis.claims] == ["before its data"]
    assert not analysis.withdrawn
    assert len(entries(tmp_path)) == 2


def test_a_claim_that_was_withdrawn_and_declared_again_is_exploratory(tmp_path):
    fill(tmp_path, study(HIGH), loss)
    declare_only(tmp_path, study())
    [claim] = analyse(declare_only(tmp_path, study(HIGH))).claims
    assert claim.is_exploratory


def test_withdrawn_claims_stay_in_the_family(tmp_path):
    claims = [dataclasses.replace(HIGH, text=f"claim {i}", by=0.29 + i * 1e-4) for i in range(5)]
    p = analyse(fill(tmp_path, study(*claims), loss)).claims[0].judgement.p_holm
    [claim] = analyse(declare_only(tmp_path, study(claims[0]))).claims
    assert claim.judgement.p_holm == p > claim.judgement.p


def test_exploratory_claims_do_not_change_the_family_of_the_others(tmp_path):
    before = analyse(fill(tmp_path, study(HIGH), loss)).claims[0]
    analysis = analyse(declare_only(tmp_path, study(HIGH, LOWER)))
    assert analysis.claims[0].judgement == before.judgement
    assert verdicts.verdict(analysis).startswith("Supported: high is worse than low")
    assert "Exploratory, declared after its data: high is better than low" in verdicts.verdict(analysis)


def test_a_claim_about_a_new_arm_is_declared_before_its_data(tmp_path):
    fill(tmp_path, study(HIGH), loss)
    wider = Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2, "top": 1e-1}, name="rate")
    new = Claim("top is worse than low", higher={"rate": "top"}, than={"rate": "low"})
    EFFECTS["top"] = 2.5
    analysis = analyse(fill(tmp_path, study(HIGH, new, axes=(wider,)), loss))
    assert [claim.is_exploratory for claim in analysis.claims] == [False, False]
    assert verdicts.when_declared(analysis.claims[1]) == "before its data (6 of its 12 results existed)"


def test_results_at_other_seeds_are_pilots(tmp_path):
    fill(tmp_path, study(seeds=range(2)), loss)
    [claim] = analyse(fill(tmp_path, study(HIGH, seeds=range(1000, 1006)), loss)).claims
    assert not claim.is_exploratory
    assert verdicts.when_declared(claim) == "before its data; 4 pilot results at other seeds"


def test_pilot_seeds_that_are_used_after_all_make_a_claim_exploratory(tmp_path):
    fill(tmp_path, study(seeds=range(2)), loss)
    fill(tmp_path, study(HIGH, seeds=range(1000, 1006)), loss)
    [claim] = analyse(declare_only(tmp_path, study(HIGH, seeds=range(2)))).claims
    assert claim.is_exploratory


def test_seeds_added_after_results_are_reported(tmp_path):
    fill(tmp_path, study(HIGH, seeds=range(4)), loss)
    analysis = analyse(fill(tmp_path, study(HIGH), loss))
    [claim] = analysis.claims
    remark = "seeds changed from 0 to 3 to 0 to 5 when 4 of 6 seeds had results"
    assert verdicts.when_declared(claim) == f"before its data; {remark}"
    assert any(limit.startswith("Seeds changed from 0 to 3 to 0 to 5 ") for limit in analysis.limits)


def test_the_same_declaration_adds_no_entry(tmp_path):
    for _ in range(3):
        fill(tmp_path, study(HIGH), loss)
    [entry] = entries(tmp_path)
    assert entry["kind"] == "declaration"
    assert "results" not in entry
    assert entry["seeds"] == list(range(6))
    assert [claim["text"] for claim in entry["claims"]] == [HIGH.text]


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("reader", ["report", "status", "compare", "flaxformer.results"])
def test_whatever_shows_unfinished_results_records_an_interim_analysis(tmp_path, reader):
    store = fill(tmp_path, study(HIGH), loss)
    [path] = store.groups.glob("*.parquet")
    rows = list(store.rows().values())
    show = {
        "report": lambda: main(["report", str(tmp_path)]),
        "status": lambda: estimates(store),
        "compare": lambda: main(["compare", str(tmp_path), str(tmp_path)]),
        "flaxformer.results": lambda: flaxformer.results(tmp_path),
    }[reader]
    show()
    assert [entry["kind"] for entry in entries(tmp_path)] == ["declaration"]
    records.write_table(path, rows[:7])
    show()
    assert [entry.get("reader") for entry in entries(tmp_path)] == [None, reader]


@pytest.mark.slow
def test_an_unfinished_report_is_an_interim_analysis(tmp_path):
    own = study(HIGH)
    store = fill(tmp_path, own, loss)
    [path] = store.groups.glob("*.parquet")
    rows = list(store.rows().values())
    records.write_table(path, rows[:7])
    for _ in range(2):
        write(store)
    records.write_table(path, rows[:9])
    analysis = write(store)
    assert [entry["kind"] for entry in entries(tmp_path)] == ["declaration", "interim", "interim"]
    assert tables.declarations(analysis).in_form("page").rows[-1][1:] == ["2 interim analyses (report)", "7 to 9"]
    records.write_table(path, rows)
    write(store)
    assert len(entries(tmp_path)) == 3


# --- tampering ----------------------------------------------------------------------------------------------


def sealed(lines):
    """Lines with their own digests, but not the chain, made right again."""
    return b"".join(digests.line({k: v for k, v in line.items() if k != "digest"}) for line in lines)


def with_flipped_sign(line):
    text = json.dumps({key: value for key, value in line.items() if key != "digest"})
    return json.loads(text.replace("1.0", "9.9").replace("-9.9", "1.0").replace("9.9", "-1.0"))


TAMPERED = {
    "changed": lambda lines: [with_flipped_sign(lines[0]), *lines[1:]],
    "removed": lambda lines: lines[1:],
    "exchanged": lambda lines: [lines[1], lines[0], *lines[2:]],
    "inserted": lambda lines: [lines[0], lines[0], *lines[1:]],
    "emptied": lambda lines: [],
    "time": lambda lines: [lines[0] | {"time": "2001-01-01T00:00:00+00:00"}, *lines[1:]],
    "results": lambda lines: [*lines[:-1], lines[-1] | {"results": {}}],
    "last removed": lambda lines: lines[:-1],
}


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED)
def test_tampering_is_detected(tmp_path, change):
    for claims in ((LOWER,), (), (HIGH,)):
        store = fill(tmp_path, study(*claims), loss)
    before = analyse(store)
    assert not before.log_faults
    (tmp_path / NAME).write_bytes(sealed(change(entries(tmp_path))))
    after = analyse(store)
    assert after.log_faults, "tampering went unnoticed"
    assert all(claim.is_exploratory for claim in after.claims)
    assert any("log of declarations was changed" in limit for limit in after.limits)
    assert [verdicts.when_declared(claim) for claim in after.claims] == ["at an unknown time"]


def test_every_changed_byte_is_detected(tmp_path):
    store = fill(tmp_path, study(HIGH), loss)
    fill(tmp_path, study(HIGH, LOWER), loss)
    path = tmp_path / NAME
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert read(store).faults, place


def test_a_claim_changed_in_study_json_alone_is_exploratory(tmp_path):
    store = fill(tmp_path, study(LOWER), loss)
    content = digests.read_document(tmp_path / "study.json")
    content["claims"][0]["terms"] = [[-weight, labels] for weight, labels in content["claims"][0]["terms"]]
    records.write_document(tmp_path / "study.json", content)
    [claim] = analyse(store).claims
    assert claim.is_exploratory


def test_a_kill_between_two_writes_is_no_fault_and_no_line_is_lost(tmp_path):
    """The log is cut anywhere in its last line, or whole, and the head is that of before the line."""
    store = fill(tmp_path, study(LOWER), loss)
    whole, head = (tmp_path / NAME).read_bytes(), (tmp_path / HEAD).read_bytes()
    fill(tmp_path, study(HIGH), loss)
    line = (tmp_path / NAME).read_bytes()[len(whole) :]
    for cut in [*range(0, len(line), 701), len(line)]:
        (tmp_path / NAME).write_bytes(whole + line[:cut])
        (tmp_path / HEAD).write_bytes(head)
        assert not read(store).faults
        declare_only(tmp_path, study(HIGH))
        assert not read(store).faults
        assert len(entries(tmp_path)) == 2
        assert digests.read_document(tmp_path / HEAD)["lines"] == 2
        assert analyse(store).claims[0].is_exploratory


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A folder with five lines in its log, two of them interim analyses; and the declaration before the last."""
    folder = tmp_path_factory.mktemp("logged")
    store = fill(folder, study(LOWER), loss)
    declared = [declaration(study(*claims)) for claims in ((), (HIGH,))]
    for n in (5, 7):
        declaration_log.record_interim_analysis(store, n, 12, "report")
    for own in declared:
        with store.locked():
            declare(store, own)
    return folder, declared[0]


@pytest.mark.every(5)
@pytest.mark.parametrize("removed", [*itertools.chain(*(itertools.combinations(range(5), n) for n in range(1, 6)))])
def test_every_removal_of_lines_is_detected_and_remembered(logged, tmp_path, removed):
    """Each line has its own digest, which is right."""
    folder, other = logged
    shutil.copytree(folder, tmp_path / "x")
    store = Store(tmp_path / "x")
    lines = (folder / NAME).read_bytes().splitlines(keepends=True)
    (store.root / NAME).write_bytes(b"".join(line for n, line in enumerate(lines) if n not in removed))
    before = read(store).faults
    assert len(lines) == 5
    assert before
    with store.locked():
        declare(store, other)
    declaration_log.record_interim_analysis(store, 8, 12, "report")
    assert not {*before} - {*read(store).faults}


def test_texts_are_in_the_log(tmp_path):
    fill(tmp_path, study(HIGH), loss)
    analysis = analyse(declare_only(tmp_path, study(HIGH, question="Is it larger?", caveats=())))
    assert [claim.is_exploratory for claim in analysis.claims] == [False]
    assert [entry.get("caveats") for entry in entries(tmp_path)] == [["It is tiny."], None]
    assert "question changed; caveats changed" in tables.declarations(analysis).in_form("page").rows[-1]


@pytest.mark.parametrize("lost", [(NAME,), (HEAD,), (NAME, HEAD)])
def test_results_without_a_log_are_exploratory_for_good(tmp_path, lost):
    store = fill(tmp_path, study(HIGH), loss)
    for name in lost:
        (tmp_path / name).unlink()
    for _ in range(2):
        [claim] = analyse(store).claims
        assert claim.is_exploratory
        assert verdicts.when_declared(claim) == "at an unknown time"
        assert f"{lost[0]} is missing" in " ".join(analyse(store).limits)
        declare_only(tmp_path, study(HIGH))


# --- probes -------------------------------------------------------------------------------------------------


def probe(*claims, seeds=range(5)):
    return Probe(
        name="p", question="How large?", measure=lambda seed: {"x": 1 + 0.1 * seed}, seeds=seeds, claims=claims
    )


def test_numbers_of_former_and_present_code_of_derive_are_not_mixed(tmp_path):
    """Seed 5 has a number of the former code, and lacks a run for one of the present code."""
    quantity = Claim("the sum is below 100", lower={"quantity": "sum"}, than=100.0)

    def former(rows):
        return {"sum": sum(row["validation_loss"] for row in rows.values())}

    def present(rows):
        return {"sum": -sum(row["validation_loss"] for row in rows.values())}

    first, second = (study(quantity, derive=function) for function in (former, present))
    store = fill(tmp_path, first, loss)
    store.remove_rows(["rate=low,seed=5"])
    with store.locked():
        declared = declare(store, declaration(second), "keep")
        about = {"measured_by": declared.measured_by, "declaration": declared.declaration}
        store.replace_measurements([about | row for row in derive_numbers(second, store.rows())], declared.measured_by)
    [claim], [withdrawn] = (analysis := analyse(store)).claims, analysis.withdrawn
    assert len(claim.differences) == 5
    assert min(claim.differences) > 100  # 100 minus a negative sum
    assert len(withdrawn.differences) == 6
    assert max(withdrawn.differences) < 100
    assert not [limit for limit in analysis.limits if "results of the earlier code were kept" in limit]


def test_claims_of_a_probe_are_logged_too(tmp_path):
    above = Claim("x is above 1", higher={"quantity": "x"}, than=1.0)
    store = Store(tmp_path)
    list(run_probe(probe(above), store))
    assert not analyse(store).claims[0].is_exploratory
    list(run_probe(probe(dataclasses.replace(above, higher=None, lower=above.higher)), store))
    analysis = analyse(store)
    assert verdicts.when_declared(analysis.claims[0]) == "after 5 of 5 results"
    assert len(analysis.withdrawn) == 1
    lines = (tmp_path / "measurements.jsonl").read_text().replace(declaration_log.read(store).digests[0], "0" * 32)
    (tmp_path / "measurements.jsonl").write_bytes(sealed(map(json.loads, lines.splitlines())))
    assert analyse(store).log_faults


def test_the_terminal_says_when_each_claim_was_declared(tmp_path):
    console = Console(file=io.StringIO(), width=80)
    fill(tmp_path, study(HIGH), loss)
    terminal.show(console, analyse(declare_only(tmp_path, study(HIGH, LOWER))))
    shown = " ".join(console.file.getvalue().split())
    assert "✓ supported: high is worse than low" in shown
    assert "declared before its data" in shown
    assert "· exploratory: refuted: high is better than low" in shown
    assert "declared after 12 of 12 results" in shown
