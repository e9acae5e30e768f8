"""Folders that other people, damage or other processes wrote: nothing is obeyed, lost in silence or believed twice."""

import io
import json
import re

import polars
import pytest
from ledger.ledgers import START, ledger
from rich.console import Console
from study.tiny import LOWER, fill, run, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.checkpoint import Stop
from flaxformer.jobs import Job, train
from flaxformer.ledger.improve import OpenLedger
from flaxformer.report import markdown, terminal
from flaxformer.report.document import document
from flaxformer.report.files import write
from flaxformer.runner.execution import Execution
from flaxformer.runner.probes import run_probe
from flaxformer.store import records
from flaxformer.store.places import JOB, LEDGER, MARKS, STUDY
from flaxformer.store.store import Store
from flaxformer.study import Claim, Probe
from flaxformer.system import digests
from flaxformer.system.errors import UserError
from flaxformer.system.files import write_atomically


def loss(trial):
    return 2.0 + 0.01 * (trial.seed % 3)


def filled(folder, **changes):
    return fill(folder, tiny(**{"seeds": range(4), "claims": (LOWER,)} | changes), loss)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("text", ["\x1b[31mred", "\x07", "\x7f", "\x9b31m", "\udcff"])
@pytest.mark.parametrize("place", ["question", "caveats", "claims"])
def test_a_declaration_with_control_characters_is_refused(tmp_path, text, place):
    store = filled(tmp_path)
    content = digests.read_document(tmp_path / "study.json")
    if place == "claims":
        content["claims"][0]["text"] = text
    else:
        content[place] = text if place == "question" else [text]
    (tmp_path / "study.json").write_text(
        json.dumps(content | {"digest": digests.digest(json.dumps(content).encode(errors="replace"))})
    )
    with pytest.raises(UserError, match="holds the control character") as error:
        _ = store.declaration
    assert str(error.value).isprintable()


@pytest.mark.parametrize("text", [r"\u001b as it is typed", "a \\ backslash", "line\nand\ttab", "ünï ↔ 語 😀"])
def test_other_characters_are_kept(tmp_path, text):
    assert filled(tmp_path, question=text).declaration.question == text


def test_a_cause_cannot_move_the_cursor(tmp_path):
    store = filled(tmp_path)
    [path] = store.groups.glob("*.parquet")
    row = next(iter(store.rows().values()))
    write_atomically(store.groups / "x.jsonl", digests.line(dict(row) | {"status": "failed", "cause": "\x1b[2Jgone"}))
    assert [one.cause for one in store.rows_of_lines(store.groups / "x.jsonl")] == ["·[2Jgone"]
    assert path.exists()


def test_markdown_is_passive(tmp_path):
    active = "<script>alert(1)</script> [link](javascript:alert(1)) ![x](http://x) <img src=x>"
    claim = Claim(active, lower={"norm": "pre"}, than={"norm": "post"})
    store = filled(tmp_path, question=active, caveats=[active], claims=(claim,))
    write(store)
    document = (tmp_path / "results.md").read_text()
    assert "alert(1)" in document
    assert "<script" not in document
    assert "<img" not in document
    assert "](" not in document
    assert "<script>alert" not in (tmp_path / "report.html").read_text()


def test_damaged_and_removed_measurements_are_reported(tmp_path):
    claim = Claim("it is small", lower={"quantity": "size"}, than=9)
    probe = Probe(
        name="p", question="How large?", measure=lambda seed: {"size": seed % 3}, seeds=range(6), claims=[claim]
    )
    store = Store(tmp_path)
    list(run_probe(probe, store))
    path = tmp_path / "measurements.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for kept, messages in (
        (
            [lines[0].replace(b'"size": 0', b'"size": 1'), *lines[1:]],
            ["1 line of 6: line 1: its digest differs", "1 of 6"],
        ),
        ([lines[0].partition(b', "digest"')[0] + b"}\n", *lines[1:]], ["it has no digest", "1 of 6"]),
        (lines[2:], ["Measurements at 2 of 6 seeds are missing."]),
    ):
        path.write_bytes(b"".join(kept))
        limits = " ".join(analyse(Store(tmp_path)).limits)
        assert all(message in limits for message in messages), limits
    path.write_bytes(b"".join(lines))
    assert "missing" not in " ".join(analyse(Store(tmp_path)).limits)


def test_a_table_without_its_digest_is_damage(tmp_path):
    store = filled(tmp_path)
    [path] = store.groups.glob("*.parquet")
    path.write_bytes(path.read_bytes().replace(b"flaxformer:", b"flaxforner:"))
    assert store.rows() == {}
    assert [*store.corrupt_files.values()] == ["it has no digest"]
    [name] = store.corrupt_files
    assert f"{name} is damaged and not used (it has no digest)." in analyse(Store(tmp_path)).limits


def test_differing_results_of_one_trial_are_reported_for_good(tmp_path):
    store = filled(tmp_path)
    first, second = list(store.rows().values())[:2]
    with store.locked():
        store.append(first.group, first)
        assert analyse(Store(tmp_path)).disagreements == {}
        store.append(second.group, second | {"validation_loss": 3.0})
        for merge in (False, True):
            if merge:
                store.finish(second.group)
            analysis = analyse(Store(tmp_path))
            assert list(analysis.disagreements) == [second.trial]
            [limit] = [one for one in analysis.limits if "deterministic" in one]
            assert "and 3.0" in limit
            assert limit in markdown.render(document(analysis))
    console = Console(width=80, record=True, file=io.StringIO())
    terminal.show(console, analyse(Store(tmp_path)))
    assert "training is not deterministic" in " ".join(console.export_text().split())


@pytest.mark.parametrize(("column", "other"), [("fingerprint", "0" * 16), ("seed", 7)])
def test_rows_of_another_recipe_or_seed_are_left_out_and_named_although_their_digest_fits(tmp_path, column, other):
    store = filled(tmp_path)
    assert not [text for text in analyse(store).warnings if "another recipe" in text]
    [path] = store.groups.glob("*.parquet")
    is_changed = polars.col("trial") == "norm=pre,rate=low,seed=2"
    changed = polars.when(is_changed).then(polars.lit(other)).otherwise(polars.col(column)).alias(column)
    records.write_table(path, polars.read_parquet(path).with_columns(changed))
    [warning] = [text for text in analyse(Store(tmp_path)).warnings if "another recipe" in text]
    assert warning.startswith("1 of 16 results have another recipe or seed than their trial (such as norm=pre,")
    assert warning.endswith("and are left out.")
    analysis = analyse(Store(tmp_path))
    place = analysis.results.trials.index("norm=pre,rate=low,seed=2")
    arm = next(arm for arm in analysis.arms if place in arm.rows.places)
    assert (len(analysis.rows), analysis.missing, arm.scores[arm.rows.places.index(place)]) == (15, 1, None)
    assert None in list(arm.rows)
    assert analysis.results.everything()["seed"].null_count() == 1


def test_the_answer_names_withdrawn_claims_where_none_is_left(tmp_path):
    filled(tmp_path)
    answer = document(analyse(filled(tmp_path, claims=()))).answer
    assert answer.startswith("No claim is declared; the tables have the results. Withdrawn after its data: high is")


WRITERS = {
    STUDY: lambda folder: next(run(tiny(), Execution(output=folder))),
    JOB: lambda folder: next(train(START, Job(output=folder), Stop())),
    LEDGER: lambda folder: OpenLedger(ledger(), folder, Execution(devices=1)).begin(),
}
"""By the kind of an output folder, a function that begins to write one."""


@pytest.mark.parametrize(("name", "kind"), MARKS.items())
@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_written_into_an_output_folder_of_another_kind(tmp_path, name, kind, writer):
    if kind == writer:
        pytest.skip("of the same kind")
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=re.escape(f"{tmp_path} holds {kind} ({name}); expected a folder of its own")):
        WRITERS[writer](tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
