"""Files of a folder in each other's place, with valid digests: each is checked by its own schema when it is read."""

import itertools
import shutil

import pytest
from study.tiny import LOWER, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.checkpoint.leaves import Leaf
from flaxformer.checkpoint.marker import Marker
from flaxformer.checkpoint.steps import leaf_digests
from flaxformer.report import markdown, provenance_text
from flaxformer.report.document import document
from flaxformer.store import declaration_log, trial_measurements
from flaxformer.store.declaration_log import HEAD
from flaxformer.store.line_forms import (
    DISAGREEMENTS,
    LAUNCHES,
    LINES,
    MEASUREMENTS,
    TRIAL_MEASUREMENTS,
    MeasuringLaunch,
    TrialMeasurement,
)
from flaxformer.store.repair import repair
from flaxformer.store.store import Store, read_lines
from flaxformer.system import digests
from flaxformer.system.errors import UserError

FILES = (declaration_log.NAME, DISAGREEMENTS, LAUNCHES, MEASUREMENTS, TRIAL_MEASUREMENTS, "groups/rows.jsonl")
DOCUMENTS = ("study.json", HEAD)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a valid line in every file."""
    root = tmp_path_factory.mktemp("swapped")
    store = fill(root, tiny(seeds=range(4), claims=(LOWER,)), lambda trial: 2.0 + 0.01 * (trial.seed % 3))
    trial, rows = store.declaration.trials[0], store.rows()
    name = trial.trial
    store.record_launch({"launched": "2026-01-01T00:00:00", "file": "study.py", "command": None, "code": "0"})
    store.append_measurement({"measured_by": "0", "seed": 0, "values": {"x": 1.0}})
    trial_measurements.append(
        store, MeasuringLaunch(function="f.py: f", measured_by="0", code={"f": "0"}, step=None, time="2026-01-01")
    )
    values = TrialMeasurement(
        function="f.py: f",
        measured_by="0",
        step=None,
        trial=name,
        fingerprint=trial.fingerprint,
        weights="0",
        at=6,
        seconds=0.1,
        values={"sharpness": 1.0},
    )
    trial_measurements.append(store, values)
    digests.append_line(root / DISAGREEMENTS, {"trial": name, "what": "validation_loss 1 and 2"})
    digests.append_line(root / "groups" / "rows.jsonl", dict(rows[name]))
    if not (root / declaration_log.NAME).exists():
        declaration_log.declare(store, store.declaration, {})
    return root


def outcome(root):
    """What the reading of a folder notes as damage, or the message of its refusal."""
    store = Store(root)
    try:
        analysis = analyse(store)
        provenance_text.provenance(analysis, read_lines(root / LAUNCHES))
        markdown.render(document(analysis))
        repair(Store(root))
    except UserError as error:
        return str(error)
    return f"{analysis.damaged} {analysis.log_faults}"


def test_the_folder_as_written_has_no_damage(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert outcome(copy) == "{} []"
    assert all(read_lines(copy / name) for name in (DISAGREEMENTS, LAUNCHES, MEASUREMENTS, TRIAL_MEASUREMENTS))


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(FILES, 2)))
def test_lines_of_another_file_are_named_as_damage(folder, tmp_path, source, target):
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.copyfile(folder / source, copy / target)
    said = outcome(copy)
    if target in LINES:
        assert not read_lines(copy / target)
    assert target in said or "line 1" in said


@pytest.mark.parametrize("target", [*FILES, *DOCUMENTS])
@pytest.mark.parametrize("source", DOCUMENTS)
def test_a_document_in_the_place_of_another_file_is_one_message(folder, tmp_path, source, target):
    if source == target:
        return
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.copyfile(folder / source, copy / target)
    assert outcome(copy) != "{} []"


def test_the_marker_of_another_step_is_one_message(tmp_path):
    marker = Marker(0, {}, {"x": Leaf((2,), "float32")}, {"x": "0"}, {})
    for step in (0, 6):
        (tmp_path / str(step)).mkdir()
        (tmp_path / str(step) / "published.json").write_bytes(marker.encode())
    assert leaf_digests(tmp_path, 0) == {"x": "0"}
    with pytest.raises(UserError, match=r"step 6 of .* is damaged: published\.json is of .*step 0; expected 1, 6"):
        leaf_digests(tmp_path, 6)
