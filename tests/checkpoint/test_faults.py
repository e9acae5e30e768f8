"""Kills, damaged files and full disks: no wrong number is read, no incomplete step counts, no older step is lost."""

import contextlib
import dataclasses
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from states import bits, numbers

from flaxformer.checkpoint import Checkpoints, SaveError, storage
from flaxformer.checkpoint.errors import DamagedStepError
from flaxformer.checkpoint.marker import Marker
from flaxformer.system import files
from flaxformer.system.errors import UserError

# If Orbax fails midway, its other tasks end in threads whose event loop no longer exists.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NEWEST, BEFORE = 7, 3
TREES = {step: bits(numbers(step, 300)) for step in (BEFORE, NEWEST)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folder with two steps, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    kept = Checkpoints(folder)
    for step in TREES:
        kept.save(step, numbers(step, 300), {"validation_loss": 0.5})
    kept.wait()
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    """Copy of that folder, and the list of reported problems."""
    said = []
    return Checkpoints(shutil.copytree(whole, tmp_path / "run"), report=said.append), said


def files_of(folder, step=NEWEST):
    return sorted(path.relative_to(folder) for path in (folder / str(step)).rglob("*") if path.is_file())


def flipped(data, place, bit=0):
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


DAMAGE = {
    "deleted": None,
    "emptied": lambda data: b"",
    "halved": lambda data: data[: len(data) // 2],
    "flipped": lambda data: flipped(data, len(data) // 2),
}


def damage(path, how):
    if DAMAGE[how] is None:
        path.unlink()
    else:
        path.write_bytes(DAMAGE[how](path.read_bytes()))


def assert_falls_back(kept, said):
    """Check that the step before is restored bit for bit, and that the newest no longer counts and is reported."""
    step, state = kept.restore(numbers(0, 300))
    assert step == BEFORE
    assert bits(state) == TREES[BEFORE]
    assert kept.steps() == [BEFORE]
    assert len(said) == 1
    assert f"step {NEWEST} of {kept.folder}" in said[0]


@pytest.mark.every(3)
@pytest.mark.parametrize("how", DAMAGE)
def test_damage_to_any_file_of_the_newest_step_falls_back(whole, tmp_path, how):
    names = files_of(whole)
    assert len(names) > 7
    for number, name in enumerate(names):
        said = []
        kept = Checkpoints(shutil.copytree(whole, tmp_path / str(number)), report=said.append)
        damage(kept.folder / name, how)
        assert_falls_back(kept, said)
        # Without its marker, a step was never published; other damaged steps are renamed.
        lost = how == "deleted" and name.name == "published.json"
        assert (kept.folder / f"{NEWEST}.corrupt").is_dir() != lost


@pytest.mark.parametrize("how", ["deleted", "flipped"])
def test_digests_of_leaves_detect_damage_without_digests_of_files(whole, tmp_path, how, monkeypatch):
    """Damage that Orbax does not notice is detected, or changes no number."""
    marked = {step: Marker.decode((whole / str(step) / "published.json").read_bytes(), step).files for step in TREES}
    monkeypatch.setattr(files, "digest_files", lambda folder, *_: marked[int(folder.parent.name)])
    fell_back = set()
    for number, name in enumerate(files_of(whole)):
        said = []
        kept = Checkpoints(shutil.copytree(whole, tmp_path / str(number)), report=said.append)
        damage(kept.folder / name, how)
        step, state = kept.restore(numbers(0, 300))
        assert bits(state) == TREES[step]
        fell_back |= {name} if said else set()
    assert len(fell_back) >= 3  # marker, metadata, and at least one file of numbers


def test_read_error_falls_back_to_the_step_before(copy, monkeypatch):
    kept, said = copy
    contents = files.digest_files

    def bad_sector(folder, *names):
        if folder.parent.name == str(NEWEST):
            raise OSError(5, "Input/output error")
        return contents(folder, *names)

    monkeypatch.setattr(files, "digest_files", bad_sector)
    assert_falls_back(kept, said)


def test_missing_arrays_fall_back_to_the_step_before(copy):
    kept, said = copy
    shutil.rmtree(kept.folder / str(NEWEST) / "state")
    assert_falls_back(kept, said)


@pytest.mark.slow
def test_every_flipped_bit_is_detected(whole, tmp_path):
    draw = random.Random(3)
    names = files_of(whole)
    for number in range(400):
        said, name = [], draw.choice(names)
        kept = Checkpoints(shutil.copytree(whole, tmp_path / str(number)), report=said.append)
        data = (kept.folder / name).read_bytes()
        (kept.folder / name).write_bytes(flipped(data, draw.randrange(len(data)), draw.randrange(8)))
        assert_falls_back(kept, said)


def test_damage_to_all_steps_raises_one_user_error(copy):
    kept, said = copy
    for step in TREES:
        (kept.folder / str(step) / "published.json").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"holds no checkpoint that can be read\nstep 7 .* is now 7.corrupt\nstep 3"):
        kept.restore(numbers(0, 300))
    assert len(said) == 2
    assert sorted(os.listdir(kept.folder)) == ["3.corrupt", "7.corrupt"]


def test_requested_step_is_not_replaced_by_another(copy):
    kept, _ = copy
    (kept.folder / str(NEWEST) / "published.json").write_bytes(b"{}")
    with pytest.raises(UserError, match="holds no step 7; it holds: 3"):
        kept.metrics(NEWEST)
    with pytest.raises(UserError, match=r"is now 7.corrupt"):
        kept.restore(numbers(0, 300), NEWEST)


def test_damaged_step_is_renamed_and_saved_again(copy):
    kept, said = copy
    for number in ("corrupt", "corrupt.1"):
        data = next(path for path in (kept.folder / str(NEWEST)).rglob("manifest.ocdbt"))
        data.write_bytes(b"")
        kept.save(NEWEST, numbers(NEWEST, 300))
        kept.wait()
        assert f"is now {NEWEST}.{number}" in said[-1]
    assert kept.restore(numbers(0, 300))[0] == NEWEST


def test_truncated_or_changed_marker_is_detected(whole):
    data = (whole / str(NEWEST) / "published.json").read_bytes()
    marker = Marker.decode(data, NEWEST)
    assert marker.encode() == data
    for end in range(len(data)):
        with pytest.raises(DamagedStepError):
            Marker.decode(data[:end], NEWEST)
    for place in range(len(data)):
        with contextlib.suppress(DamagedStepError):  # or it has the same content
            assert Marker.decode(flipped(data, place), NEWEST) == marker
    with pytest.raises(DamagedStepError, match="step 7"):
        Marker.decode(data, 8)


# --- saves that fail ------------------------------------------------------------------------------------


def assert_save_fails(kept, said, message):
    """Check that the next save is reported and raised once with a message, and adds and removes no file."""
    before = sorted(os.listdir(kept.folder))
    kept.save(NEWEST + 1, numbers(NEWEST + 1, 300))
    kept.finish_save()
    assert kept.steps() == [BEFORE, NEWEST]
    assert sorted(os.listdir(kept.folder)) == before
    assert len(said) == 1
    with pytest.raises(SaveError, match=message):
        kept.wait()
    kept.wait()
    assert bits(kept.restore(numbers(0, 300))[1]) == TREES[NEWEST]


def assert_save_succeeds(kept):
    """Check that a later save succeeds."""
    kept.save(NEWEST + 2, numbers(NEWEST + 2, 300))
    kept.wait()
    assert kept.restore(numbers(0, 300))[0] == NEWEST + 2


def test_no_file_outside_the_folder_is_read_by_its_name(copy, monkeypatch, tmp_path):
    """A marker of a foreign folder may name any file, such as a device that has no end."""
    kept, said = copy
    (tmp_path / "outside").write_bytes(b"x")
    path = kept.folder / str(NEWEST) / "published.json"
    marker = Marker.decode(path.read_bytes(), NEWEST)
    outside = {f"{'../' * 3}outside": files.digest_files(tmp_path, ["outside"])["outside"], "/dev/zero": "0"}
    path.write_bytes(dataclasses.replace(marker, files=marker.files | outside).encode())
    read, opened = Path.open, []
    monkeypatch.setattr(Path, "open", lambda self, *how, **more: opened.append(self) or read(self, *how, **more))
    assert kept.restore(numbers(NEWEST, 300))[0] == BEFORE
    assert "outside is missing" in said[0]
    assert all(path.resolve().is_relative_to(kept.folder.resolve()) for path in opened)


def test_full_disk_is_detected_before_writing(copy, monkeypatch):
    kept, said = copy
    with monkeypatch.context() as patch:
        patch.setattr(files, "free_bytes", lambda folder: 1234)
        patch.setattr(storage, "write", lambda *_: pytest.fail("written"))
        assert_save_fails(
            kept, said, r"step 8 was not saved in .*: the disk is full: a save needs 16,78\d,\d\d\d bytes free, 1,234"
        )
    assert_save_succeeds(kept)


def test_disk_that_fills_up_during_a_save_leaves_no_files(copy, monkeypatch):
    kept, said = copy

    def full(folder, arrays):
        (folder / "part").write_bytes(b"part")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write", full)
        assert_save_fails(kept, said, "No space left on device")
    assert_save_succeeds(kept)


def test_file_size_limit_during_a_save_leaves_no_files(copy):
    kept, said = copy
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, former[1]))
    try:
        assert_save_fails(kept, said, "step 8 was not saved")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert_save_succeeds(kept)


def test_step_is_not_published_if_it_reads_back_differently(copy, monkeypatch):
    kept, said = copy
    read = storage.read

    def wrong(folder, names):
        found = read(folder, names)
        return found | {"half": found["half"] + np.ones_like(found["half"])} if folder.parent.name == "8" else found

    with monkeypatch.context() as patch:
        patch.setattr(storage, "read", wrong)
        assert_save_fails(kept, said, "half reads back differently")
    assert_save_succeeds(kept)


@pytest.mark.parametrize("call", ["flush_all", "write_atomically"])
def test_failure_before_the_marker_is_written_publishes_nothing(copy, monkeypatch, call):
    kept, said = copy

    def broken(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files, call, broken)
        assert_save_fails(kept, said, "Input/output error")
    assert_save_succeeds(kept)


def test_step_without_a_marker_is_ignored_and_removed_by_the_next_save(copy):
    kept, said = copy
    (kept.folder / str(NEWEST) / "published.json").unlink()
    assert kept.restore(numbers(0, 300))[0] == BEFORE
    assert said == [f"step {NEWEST} of {kept.folder} is ignored: it was never published"]
    kept.save(NEWEST + 1, numbers(NEWEST + 1, 300))
    kept.wait()
    assert sorted(os.listdir(kept.folder)) == [str(BEFORE), str(NEWEST + 1)]


def test_older_steps_are_removed_only_after_the_newer_is_published(copy, monkeypatch):
    kept, _ = copy
    kept.keep_last, kept.keep_best = 1, 0
    order = []
    for module, names in (
        (storage, ["write", "merge", "read"]),
        (files, ["flush_all", "write_atomically", "remove"]),
    ):
        for name in names:
            own = getattr(module, name)
            monkeypatch.setattr(module, name, lambda *given, name=name, own=own: (order.append(name), own(*given))[1])
    kept.save(NEWEST + 1, numbers(NEWEST + 1, 300))
    kept.wait()
    assert order == ["write", "merge", "flush_all", "read", "write_atomically", "remove", "remove"]
    assert kept.steps() == [NEWEST + 1]


def test_a_step_that_is_a_link_is_refused_by_name(copy, tmp_path):
    kept, _ = copy
    mine = tmp_path / "mine"
    shutil.copytree(kept.folder / str(BEFORE), mine)
    (kept.folder / "9").symlink_to(mine)
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    for act in (kept.steps, lambda: kept.save(10, numbers(10, 300)), lambda: kept.restore(numbers(0, 300))):
        with pytest.raises(UserError, match="9 is a symbolic link; expected a folder of its own"):
            act()
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


def test_a_link_in_a_step_is_removed_and_not_followed(copy, tmp_path):
    kept, _ = copy
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("mine")
    (kept.folder / str(BEFORE) / "state" / "link").symlink_to(mine)
    with pytest.raises(UserError, match="state/link is a symbolic link"):
        kept.restore(numbers(0, 300), step=BEFORE)
    kept.keep_last, kept.keep_best = 1, 0
    kept.save(8, numbers(8, 300))
    kept.wait()
    assert kept.steps() == [8]
    assert (mine / "file").read_text() == "mine"


# --- kills ----------------------------------------------------------------------------------------------

CHILD = """
import sys
from flaxformer.checkpoint import Checkpoints
from states import numbers
kept = Checkpoints(sys.argv[1], keep_last=2, keep_best=0)
for step in range(1 + max(kept.steps(), default=0), 10_000):
    kept.save(step, numbers(step, 300))
    print(step, flush=True)
"""


def check_after_kill(folder, draw):
    """Kill a process during its third save or later, and check what it has published."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1])])
    environment = os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CHILD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        begun = [int(child.stdout.readline()) for _ in range(3)]
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(draw.uniform(0, 0.3))
        child.kill()
        begun += [int(line) for line in child.stdout.read().split()]
    assert child.returncode == -signal.SIGKILL
    said = []
    kept = Checkpoints(folder, report=said.append)
    step, state = kept.restore(numbers(0, 300))
    # At most the last two saves are missing, no step is damaged, and the numbers are those of the step.
    assert begun[-1] - 2 <= step <= begun[-1] + 1
    assert not any("corrupt" in line for line in said)
    assert bits(state) == bits(numbers(step, 300))


def test_killed_process_loses_at_most_the_save_in_progress(tmp_path):
    check_after_kill(tmp_path, random.Random(3))


@pytest.mark.slow
def test_repeatedly_killed_process_resumes_from_its_published_steps(tmp_path):
    draw = random.Random(7)
    for _ in range(20):
        check_after_kill(tmp_path, draw)
