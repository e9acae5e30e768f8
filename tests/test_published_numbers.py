"""Studies of published/, inversions/ and components/: what each says of its source, and the pages of their records."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
from study.tiny import LOWER, fill, tiny

from flaxformer.store.declarations import declare
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.provenance import provenance
from flaxformer.store.records import append_line
from flaxformer.study import Claim
from flaxformer.study.load import load_study
from flaxformer.study.plan import declaration
from flaxformer.system.errors import UserError

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
spec = importlib.util.spec_from_file_location("published_records", EXPERIMENTS / "records.py")
records = importlib.util.module_from_spec(spec)
spec.loader.exec_module(records)
FIELDS = {
    "published": ("Published", "Differences", "Pilot", "Command", "Cost"),
    "inversions": ("Published", "Question", "Design", "Command", "Cost"),
    "components": ("Source", "Expected", "Command", "Cost"),
}
STUDIES = [file for folder in FIELDS for file in sorted((EXPERIMENTS / folder).glob("*.py"))]


@pytest.mark.parametrize("folder", FIELDS)
def test_the_page_is_what_the_records_and_first_lines_give(folder):
    assert (EXPERIMENTS / folder / "README.md").read_text() == records.page(folder)


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_a_study_says_what_was_published_and_has_its_record(file):
    study, text, folder = load_study(file), records.first_lines(file), file.parent.name
    assert study.name.endswith(file.stem)
    assert study.caveats
    assert [name for name in FIELDS[folder] if not records.field(text, name)] == []
    assert records.field(text, "Command").startswith(f"flaxformer run experiments/{folder}/{file.name}")
    assert not set(study.seeds) & set(range(100, 200)), "seeds from 100 to 199 are for pilots"
    assert len(study.seeds) >= 5
    assert len(study.trials()) == len(study.arms()) * len(study.seeds)
    path = records.record_file(file)
    if path.exists():
        found = json.loads(path.read_text())
        assert [line["tested"] for line in found["statements"]] == [claim.text for claim in study.claims]
        assert found["runs"] == len(study.trials())
        assert records.field(text, "Result")
        assert records.field(text, "Cause") or folder != "inversions"


def test_a_field_ends_at_the_next_one():
    text = "Question?\n\nPublished: a number\n    (table 3).\nMeasured: another\n    one.\n\nResult: not this."
    assert records.field(text, "Published") == "a number (table 3)."
    assert records.field(text, "Result", "Measured") == "not this."
    assert records.field(text, "Cost") == ""


def test_a_record_has_the_verdict_of_every_claim(tmp_path):
    def scores(trial):
        is_high = trial.arm.labels.get("rate") == "high"
        return 2.0 - 0.3 * is_high + 0.002 * ((7 * trial.seed + 3 * is_high) % 11)

    opposite = Claim("low is better than high", lower={"rate": "low"}, than={"rate": "high"})
    study = tiny(seeds=range(6), claims=(LOWER, opposite))
    store = fill(tmp_path / "tiny", study, scores)
    append_line(store.root / LAUNCHES, provenance())
    found = records.record_of(store.root)
    assert found["study"] == "tiny"
    assert [(line["tested"], line["verdict"]) for line in found["statements"]] == [
        (LOWER.text, "supported"),
        (opposite.text, "refuted"),
    ]
    assert json.loads(json.dumps(found)) == found
    with store.locked():
        declare(store, declaration(dataclasses.replace(study, seeds=range(7))), "refuse")
    with pytest.raises(UserError, match="lacks 4 runs"):
        records.record_of(store.root)
