"""Tables in several files, and Parquet files that are read row group by row group."""

import sys
import types

import polars as pl
import pytest

from flaxformer.data import open_tokens, prepare
from flaxformer.data.documents import Texts
from flaxformer.data.rows import ROWS, read_rows
from flaxformer.system.errors import UserError

TEXTS = [f"line {number} of the table" for number in range(60)]


@pytest.fixture
def folder(tmp_path):
    """Three parts of a table in a folder, and a file of something else."""
    (tmp_path / "parts" / "more").mkdir(parents=True)
    for part, name in enumerate(["a-0.parquet", "a-1.parquet", "more/a-2.parquet"]):
        frame = pl.DataFrame({"text": TEXTS[20 * part : 20 * part + 20], "label": list(range(20))})
        frame.write_parquet(tmp_path / "parts" / name, row_group_size=7)
    (tmp_path / "parts" / "readme.md").write_text("Not a part.")
    return tmp_path / "parts"


def texts_of(source):
    return [b"".join(document.pieces()).decode() for document in Texts(str(source), drop=("label",))]


def test_files_that_match_are_read_in_order(folder, monkeypatch):
    assert texts_of(folder / "a-*.parquet") == TEXTS[:40]
    assert texts_of(folder / "**/*.parquet") == TEXTS
    assert texts_of(folder / "more" / "*.parquet") == TEXTS[40:]
    monkeypatch.chdir(folder)
    assert texts_of("*.parquet") == TEXTS[:40]
    description = prepare(folder / "a-*.parquet", folder / "tokens", drop="label")
    assert description["sources"] == ["a-0.parquet", "a-1.parquet"]
    assert sum(description["documents"].values()) == 40
    assert open_tokens(str(folder / "tokens")).train.size == description["tokens"]["train"]


def test_nothing_that_matches_is_refused(folder):
    with pytest.raises(UserError, match=r"which matches no file; expected text to learn from"):
        texts_of(folder / "b-*.parquet")


def test_files_of_the_hub_are_downloaded_one_after_another(folder, monkeypatch):
    asked = []

    def hf_hub_download(repository, file, repo_type, revision):
        asked.append((repository, file, revision))
        return str(folder / file.removeprefix("data/"))

    def list_repo_files(repository, repo_type, revision):
        if repository != "someone/lines":
            raise OSError("404: none\nmore")
        return ["data/a-1.parquet", "data/a-0.parquet", "data/readme.md", "other/a-0.parquet"]

    hub = types.SimpleNamespace(hf_hub_download=hf_hub_download, list_repo_files=list_repo_files)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    documents = iter(Texts("hf://datasets/someone/lines@v2/data/a-*.parquet", drop=("label",)))
    assert next(documents).name == "a-0.parquet"
    assert asked == [("someone/lines", "data/a-0.parquet", "v2")]
    assert len(list(documents)) == 39
    assert asked[1:] == [("someone/lines", "data/a-1.parquet", "v2")]
    with pytest.raises(UserError, match=r"which cannot be listed: 404: none$"):
        texts_of("hf://datasets/someone/none/*.parquet")


def test_a_parquet_file_is_not_read_whole(tmp_path):
    """Rows before a damaged row group are read, and those in it are refused: it was not read before."""
    file, groups = tmp_path / "long.parquet", 4
    frame = pl.DataFrame({"text": [f"{number:08}" for number in range(groups * ROWS)]})
    frame.write_parquet(file, row_group_size=ROWS, compression="uncompressed", use_pyarrow=False)
    data = file.read_bytes()
    at = data.index(f"{(groups - 1) * ROWS:08}".encode())
    file.write_bytes(data[: at - 60] + b"\xff" * 5000 + data[at + 4940 :])
    rows = read_rows(file, ["text"])
    for number in range((groups - 1) * ROWS):
        assert next(rows).values["text"] == f"{number:08}"
    with pytest.raises(UserError, match=rf"row {(groups - 1) * ROWS + 1} or later: expected a Parquet file, but"):
        next(rows)
