"""Messages that say what to do: choices, folders that are split by file, and where a study's file can be found."""

import subprocess
from types import SimpleNamespace

import pytest

from flaxformer.core.overrides import override
from flaxformer.report import provenance_text
from flaxformer.store import provenance
from flaxformer.system import errors
from flaxformer.system.errors import FEW, UserError, did_you_mean
from flaxformer.tasks import TextFiles
from flaxformer.training import Run


def test_a_part_that_does_not_exist_gets_the_list_of_choices(monkeypatch):
    monkeypatch.setattr(errors, "FEW", 1000)  # components that other tests define are choices too
    with pytest.raises(UserError, match=r"model.feed_forward is 'moe'.* It has: none, Dense, .*Gated"):
        override(Run(), ["model.feed_forward=moe"])


def test_a_few_names_are_listed_and_many_are_not():
    few, many = ["layers", "heads"], [f"field_{i}" for i in range(FEW)] + ["layers"]
    assert did_you_mean("layrs", few) == "; did you mean 'layers'? It has: layers, heads"
    assert did_you_mean("layrs", many) == "; did you mean 'layers'?"
    assert did_you_mean("xyz", few) == "; it has: layers, heads"


@pytest.mark.parametrize("name", ["a.txt", "b.txt", "c.txt"])
def test_the_message_for_a_folder_with_one_file_names_the_split_by_file(tmp_path, name):
    (tmp_path / name).write_text("to be or not to be " * 100)
    message = r"the only file is (training|validation) data, because a folder is split by file.*the path of one file"
    with pytest.raises(UserError, match=message):
        TextFiles(path=str(tmp_path)).load()
    assert TextFiles(path=str(tmp_path / name)).corpus().files == 1


def committed(folder):
    """Commit the folder, with a study's file, in a repository of its own."""
    (folder / "study.py").write_text("study = 1\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git checkout that holds the package and a study's file; the package is taken to be there."""
    package = tmp_path / "checkout" / "flaxformer"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    committed(package.parent)
    monkeypatch.setattr(provenance, "flaxformer", SimpleNamespace(__file__=str(package / "__init__.py")))
    return package.parent


def test_a_study_file_is_in_the_commit_only_as_it_was_committed(checkout, tmp_path):
    assert provenance.is_in_commit(checkout / "study.py")
    (checkout / "study.py").write_text("study = 2\n")
    assert not provenance.is_in_commit(checkout / "study.py")
    (checkout / "new.py").write_text("study = 1\n")
    assert not provenance.is_in_commit(checkout / "new.py")
    (tmp_path / "elsewhere.py").write_text("study = 1\n")
    assert not provenance.is_in_commit(tmp_path / "elsewhere.py")
    (tmp_path / "other").mkdir()
    committed(tmp_path / "other")
    assert not provenance.is_in_commit(tmp_path / "other" / "study.py")


def test_a_study_file_outside_the_commit_is_run_from_its_copy():
    launch = {"command": "flaxformer run rates.py --seeds 3", "file": "rates.py", "code": "0123"}
    copy = "flaxformer run code/0123/rates.py --seeds 3 --output NEW"
    for is_in_commit, expected in ((True, launch["command"]), (False, "")):
        launches = [launch | {"file_in_commit": is_in_commit}]
        assert provenance_text.commands(launches) == expected
        assert provenance_text.commands_for_copies(launches) == copy
    assert provenance_text.commands([{"command": "flaxformer claims", "file": None}]) == "flaxformer claims"
