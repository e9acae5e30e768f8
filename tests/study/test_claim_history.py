"""The log of declarations: what it records, which claims count as declared before their data, and changes to it."""

import dataclasses
import io
import json

import pytest
from rich.console import Console
from study.tiny import LOWER, RATE, fill, tiny

import flaxformer
from flaxformer import digests
from flaxformer.cli import main
from flaxformer.cli import status as cli_status
from flaxformer.report import tables, terminal, verdicts
from flaxformer.report.write import write
from flaxformer.runner.probes import run_probe
from flaxformer.store import declaration_log, records
from flaxformer.store.declaration_log import NAME, read
from flaxformer.store.declarations import declare
from flaxformer.store.store import Store, read_lines
from flaxformer.study import Axis, Claim, Probe
from flaxformer.study.analysis import analyse
from flaxformer.study.plan import declaration

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
    assert verdicts.declared(claim) == "before its data"
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
    assert verdicts.declared(claim) in ("after 12 of 12 results", "after 6 of 6 results")
    assert verdicts.verdict_of(claim).startswith("exploratory: ")
    assert (former.text, former.judgement.verdict) == (before.text, was)
    answer = verdicts.verdict(analysis)
    assert answer.startswith("No claim was declared before its data.")
    assert f"Withdrawn after its data: {before.text} ({was}" in answer
    cells = " ".join(tables.declarations(analysis).rows[-1])
    assert ("rule changed: " in cells) if before.text == after.text else ("claim withdrawn: " in cells)


def test_a_claim_changed_before_its_data_leaves_no_trace_in_its_verdict(tmp_path):
    declare_only(tmp_path, study(LOWER))
    analysis = analyse(fill(tmp_path, study(HIGH), loss))
    assert [verdicts.declared(claim) for claim in analysis.claims] == ["before its data"]
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
    assert verdicts.declared(analysis.claims[1]) == "before its data (6 of its 12 results existed)"


def test_results_at_other_seeds_are_pilots(tmp_path):
    fill(tmp_path, study(seeds=range(2)), loss)
    [claim] = analyse(fill(tmp_path, study(HIGH, seeds=range(1000, 1006)), loss)).claims
    assert not claim.is_exploratory
    assert verdicts.declared(claim) == "before its data; 4 pilot results at other seeds"


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
    assert verdicts.declared(claim) == f"before its data; {remark}"
    assert any(limit.startswith("Seeds changed from 0 to 3 to 0 to 5 ") for limit in analysis.limits)


def test_the_same_declaration_adds_no_entry(tmp_path):
    for _ in range(3):
        fill(tmp_path, study(HIGH), loss)
    [entry] = entries(tmp_path)
    assert entry["kind"] == "declaration"
    assert entry["results"] == {}
    assert entry["seeds"] == list(range(6))
    assert [claim["text"] for claim in entry["claims"]] == [HIGH.text]


@pytest.mark.parametrize("reader", ["report", "status", "compare", "flaxformer.results"])
def test_whatever_shows_unfinished_results_records_an_interim_analysis(tmp_path, reader):
    store = fill(tmp_path, study(HIGH), loss)
    [path] = store.groups.glob("*.parquet")
    rows = list(store.rows().values())
    show = {
        "report": lambda: main(["report", str(tmp_path)]),
        "status": lambda: cli_status.estimates(store),
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
    assert tables.declarations(analysis).rows[-1][1:] == ["2 interim analyses (report)", "7 to 9"]
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
    assert [verdicts.declared(claim) for claim in after.claims] == ["at an unknown time"]


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


@pytest.mark.slow
def test_a_last_line_that_a_kill_cut_short_is_dropped(tmp_path):
    store = fill(tmp_path, study(LOWER), loss)
    whole = (tmp_path / NAME).read_bytes()
    fill(tmp_path, study(HIGH), loss)
    line = (tmp_path / NAME).read_bytes()[len(whole) :]
    for cut in range(0, len(line), 11):
        (tmp_path / NAME).write_bytes(whole + line[:cut])
        declare_only(tmp_path, study(HIGH))
        assert not read(store).faults
        assert len(entries(tmp_path)) == 2
        assert analyse(store).claims[0].is_exploratory


def without_log(root, store):
    """Make a folder one from before the log existed."""
    (root / NAME).unlink()
    content = digests.read_document(root / "study.json")
    del content["declaration"]
    records.write_document(root / "study.json", content)
    [path] = store.groups.glob("*.parquet")
    records.write_table(path, [dict(row) | {"declaration": None} for row in store.rows().values()])


def test_an_older_folder_is_shown_as_declared_before_the_log_existed(tmp_path):
    store = fill(tmp_path, study(HIGH), loss)
    verdict = analyse(store).claims[0].judgement
    without_log(tmp_path, store)
    [claim] = analyse(store).claims
    assert verdicts.declared(claim) == "before this log existed"
    assert claim.judgement == verdict
    [claim] = analyse(declare_only(tmp_path, study(HIGH))).claims
    assert verdicts.declared(claim) == "before this log existed"
    assert entries(tmp_path)[0]["kind"] == "earlier"


def test_a_claim_changed_in_an_older_folder_is_exploratory(tmp_path):
    store = fill(tmp_path, study(LOWER), loss)
    without_log(tmp_path, store)
    analysis = analyse(declare_only(tmp_path, study(HIGH)))
    assert [claim.is_exploratory for claim in analysis.claims] == [True]
    assert [claim.text for claim in analysis.withdrawn] == [LOWER.text]


# --- probes -------------------------------------------------------------------------------------------------


def probe(*claims, seeds=range(5)):
    return Probe(
        name="p", question="How large?", measure=lambda seed: {"x": 1 + 0.1 * seed}, seeds=seeds, claims=claims
    )


def test_claims_of_a_probe_are_logged_too(tmp_path):
    above = Claim("x is above 1", higher={"quantity": "x"}, than=1.0)
    store = Store(tmp_path)
    list(run_probe(probe(above), store))
    assert not analyse(store).claims[0].is_exploratory
    list(run_probe(probe(dataclasses.replace(above, higher=None, lower=above.higher)), store))
    analysis = analyse(store)
    assert verdicts.declared(analysis.claims[0]) == "after 5 of 5 results"
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
