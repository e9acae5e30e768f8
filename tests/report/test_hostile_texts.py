"""Texts of a folder are data: a hostile one in any field of any file reaches no output as a command or as markup."""

import copy
import re
import shutil

import polars as pl
import pytest
from study.tiny import fill, tiny

from flaxformer.cli import main
from flaxformer.report import figures
from flaxformer.report.texts import csv_cell, passive
from flaxformer.store import declaration_log, records, trial_measurements
from flaxformer.store.trial_measurements import Launch, TrialMeasurement
from flaxformer.system import digests

HOSTILE = "=cmd|x\x1b]0;pwn\x07\x9b31m\u202e\u2066\u2028\r\n\n# heading9\n<script>alert(9)</script>"
HOSTILE += "<img src=x> \"'[a](javascript:9)"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
ACTIVE = {
    ".md": re.compile(r"^\s*(- )?# heading9|<script>alert|<img src=x|\]\(javascript", re.MULTILINE),
    ".html": re.compile(r"<script>alert|<img src=x"),
    ".svg": re.compile(r"<script>alert|<img src=x"),
    ".csv": re.compile(r'(^|[,"\n])=cmd'),
    ".tex": re.compile("<script"),
}


def whole(root):
    """Write a folder with a line of every kind in every file that the reports read."""
    store = fill(root, tiny(), lambda trial: 1.0 + trial.seed + (trial.arm.labels["rate"] == "low"))
    rows = list(store.rows().values())
    failed = dict(rows[0]) | {"status": "failed", "cause": "a cause", "error": "a traceback", "device": "a device"}
    records.append_line(root / "groups/failed.jsonl", failed)
    function = ("own.py: measure", "1234", None)
    trial_measurements.append(store, Launch(*function[:2], {"own.py: measure": "12"}, None, "2026-01-01T00:00:00"))
    for one in rows:
        identity = (*function, one.trial, one.fingerprint, "56", 6, 0.1)
        trial_measurements.append(store, TrialMeasurement(*identity, {"sharpness": 1.0 + one.seed}))
    launch = {"launched": "2026-01-01T00:00:00", "devices": "2 × cpu", "commit": "abc", "platform": "linux", "jax": "1"}
    launch |= {
        "command": "flaxformer run own.py",
        "file": "own.py",
        "code": "ab",
        "precision": "float32",
        "python": "3",
    }
    store.record_launch(launch)
    replication = {"seeds": [7, 8], "folder": "elsewhere", "verdicts": {"a claim": "supported"}}
    assert declaration_log.record_event(store, "replication", replication)
    verification = {
        "seed": 1,
        "trials": [rows[0].trial],
        "finished": 12,
        "different": {rows[0].trial: "loss"},
        "source": "x",
    }
    assert declaration_log.record_event(store, "verification", verification)
    records.append_line(root / "disagreements.jsonl", {"trial": rows[0].trial, "what": "loss 1 and 2"})
    return root


def places(data, path=()):
    """Yield the path of every text in plain data, and of every name in an object."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(data, dict) and path:
            yield (*path, key), True
        if isinstance(value, str):
            yield (*path, key), False
        elif isinstance(value, dict | list):
            yield from places(value, (*path, key))


def planted(data, path, is_name):
    data = copy.deepcopy(data)
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    if is_name:
        parent[HOSTILE] = parent.pop(path[-1])
    else:
        parent[path[-1]] = HOSTILE
    return data


def kinds(found):
    """The first place of each kind: the same path apart from numbers and names of arms, trials and seeds."""
    first = {}
    for path, is_name in found:
        kind = tuple("*" if isinstance(key, int) or "=" in str(key) or "recipes" in path else key for key in path)
        first.setdefault((kind, is_name), (path, is_name))
    return list(first.values())


def chained(lines):
    """The lines of the log with the digests of their predecessors, and the head, as the package writes them."""
    written, head = [], None
    for line in lines:
        data = digests.line(line | ({"previous": head} if head or "previous" in line else {}))
        written.append(data)
        head = digests.digest(data[:-1], 16)
    return written, {"lines": len(written), "last": head}


def versions(root, name):
    """Yield what to write for each place of a file, with a word on it."""
    path = root / name
    if name.endswith(".parquet"):
        table = pl.DataFrame(records.read_table(path))
        for column, kind in table.schema.items():
            if kind == pl.String:
                yield (
                    column,
                    lambda at, column=column: records.write_table(
                        at, table.with_columns(pl.lit(HOSTILE).alias(column))
                    ),
                )
                yield (
                    f"{column} of one",
                    lambda at, column=column: records.write_table(
                        at,
                        table.with_row_index()
                        .with_columns(
                            pl.when(pl.col("index") > 0).then(pl.col(column)).otherwise(pl.lit(HOSTILE)).alias(column)
                        )
                        .drop("index"),
                    ),
                )
    elif name.endswith(".jsonl"):
        lines = digests.lines(path)[0]
        for place in kinds(
            ((number, *path), is_name) for number, line in enumerate(lines) for path, is_name in places(line)
        ):
            number, is_name = place[0][0], place[1]
            changed = [*lines[:number], planted(lines[number], place[0][1:], is_name), *lines[number + 1 :]]

            def write(at, changed=changed):
                if name != "declarations.jsonl":
                    at.write_bytes(b"".join(map(digests.line, changed)))
                    return
                written, head = chained(changed)
                at.write_bytes(b"".join(written))
                digests.write_document(at.with_name("declarations.head"), head)

            yield str(place), write
    else:
        data = digests.read_document(path)
        for place in kinds(places(data)):
            yield str(place), lambda at, place=place: digests.write_document(at, planted(data, *place))


FILES = ["study.json", "declarations.jsonl", "launches.jsonl", "trial_measurements.jsonl", "disagreements.jsonl"]
FILES += ["groups/all.parquet", "groups/failed.jsonl", "declarations.head"]


@pytest.mark.parametrize("name", FILES)
def test_no_text_of_a_file_is_obeyed_or_interpreted(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr(figures, "draw", lambda analysis, folder: {})
    whole(tmp_path / "whole")
    count = shown = 0
    for what, write in versions(tmp_path / "whole", name):
        root = tmp_path / "out"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", root)
        write(root / name)
        for words in (["report", str(root)], ["status", str(root)], ["compare", str(root), str(tmp_path / "whole")]):
            capsys.readouterr()
            code, (out, err) = main(words), capsys.readouterr()
            assert not OBEYED.search(out + err), (what, words, OBEYED.search(out + err))
            assert (code == 2) == ("error: " in err), (what, words, err)
            assert code in (0, 2), (what, err)
        for path in root.iterdir():
            if path.suffix in ACTIVE and path.is_file():
                text = path.read_text()
                assert not OBEYED.search(text), (what, path.name, OBEYED.search(text))
                assert not ACTIVE[path.suffix].search(text), (what, path.name, ACTIVE[path.suffix].search(text))
        count, shown = count + 1, shown + (root / "results.md").exists()
    assert count


@pytest.mark.parametrize(
    "text", ["# a", "- a", "> a", "1 > 2\n# a", "===", "* a", "```", "[a]: http://x", "[a][b]", "]\\(x"]
)
def test_a_text_begins_no_block_of_markdown(text):
    found = passive(text)
    assert "\n" not in found
    assert not re.match(r"#|[-*+]\s|>|=|`", found)
    assert not re.search(r"\]\(|\]:|\]\[", found)


@pytest.mark.parametrize(
    ("text", "cell"),
    [("=1+1", "'=1+1"), ("@x", "'@x"), ("-1.5", "-1.5"), ("+1e3", "+1e3"), ("-x", "'-x"), ("a\nb", "a b"), ("x", "x")],
)
def test_a_cell_is_no_formula_and_numbers_stay(text, cell):
    assert csv_cell(text) == cell
