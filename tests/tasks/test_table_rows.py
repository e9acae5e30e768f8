"""Tasks on rows of tables: every format, division and tokenizer gives the examples of a plain loop, or one message."""

import csv
import gzip
import hashlib
import io
import json
import sys
import tempfile
import types
from collections import Counter
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.every import WORDS, same, word_tokenizer
from tokenizers import Tokenizer

from flaxformer import model
from flaxformer.components import Classifier, Regressor, Vectors
from flaxformer.config import ModelConfig
from flaxformer.data import prepare
from flaxformer.data.rows import read_cells
from flaxformer.data.tokenizer import train_bpe
from flaxformer.system.errors import UserError
from flaxformer.tasks import PairedFiles, Pairs, TableRows, TextLabels, TextPair
from flaxformer.training import Run

SIZES = {"batch_size": 3, "evaluation_batches": 2}
ROWS = [
    {
        "id": 7 * i,
        "text": ["the quick, brown fox", 'a "lazy" dog', "do we\njump?", "Grüße ☕ and so; on", "fox"][i % 5]
        + f" {i % 17}",
        "label": ["no", "yes", "maybe so"][(i * i) % 7 % 3],
        "author": f"author {i % 6}",
        "weight": i * i / 8,
    }
    for i in range(47)
]
LENGTH = 19


def as_csv(rows, divider=",", **options):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=divider, **options)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_lines(rows):
    return ("\n".join(json.dumps(row) for row in rows) + "\n\n").encode()


def as_parquet(rows):
    file = io.BytesIO()
    polars.DataFrame(rows).write_parquet(file, row_group_size=5)
    return file.getvalue()


FORMATS = {
    "a.csv": as_csv,
    "unix.csv": lambda rows: as_csv(rows, lineterminator="\n", quoting=csv.QUOTE_ALL),  # also a carriage return
    "semicolons.csv": lambda rows: as_csv(rows, ";"),
    "mark.csv": lambda rows: b"\xef\xbb\xbf" + as_csv(rows),
    "quoted.CSV": lambda rows: as_csv(rows, quoting=csv.QUOTE_ALL),
    "blank.csv": lambda rows: as_csv(rows).replace(b"\r\n", b"\r\n\r\n"),
    "a.csv.gz": lambda rows: gzip.compress(as_csv(rows)),
    "a.tsv": lambda rows: as_csv(rows, "\t"),
    "a.jsonl": as_lines,
    "a.ndjson": as_lines,
    "a.parquet": as_parquet,
}


PLAIN = list(FORMATS)


def written(folder, name, rows=ROWS):
    (folder / name).write_bytes(FORMATS[name](rows))
    return str(folder / name)


def divided(rows, tenths, group=None):
    """Training, validation and test rows: the different keys in the order of their digests, in three parts."""
    keys = [row["text"] if group is None else row[group] for row in rows]
    order = sorted({*keys}, key=lambda key: hashlib.sha256(key.encode()).hexdigest())
    ends = [round(len(order) * tenths[0] / 10), round(len(order) * tenths[0] / 10) + round(len(order) * tenths[1] / 10)]
    parts = (order[ends[1] :], order[: ends[0]], order[ends[0] : ends[1]])
    return [[row for row, key in zip(rows, keys, strict=True) if key in part] for part in parts]


DIVISIONS = {
    "rows": ({"validation_tenths": 2, "test_tenths": 3}, lambda: divided(ROWS, (2, 3))),
    "groups": ({"group": "author", "validation_tenths": 3, "test_tenths": 2}, lambda: divided(ROWS, (3, 2), "author")),
    "files": ({"validation_path": ROWS[20:31], "test_path": ROWS[9:16]}, lambda: [ROWS, ROWS[20:31], ROWS[9:16]]),
    "a test file": (
        {"validation_tenths": 2, "test_path": ROWS[9:16]},
        lambda: [*divided(ROWS, (2, 0))[:2], ROWS[9:16]],
    ),
    "a validation file": ({"validation_path": ROWS[20:31]}, lambda: [ROWS, ROWS[20:31], []]),
}


def fields_of(division, folder, name):
    """Fields of a task for a division; rows are written to files of a format."""
    return {
        field: written(folder, f"{field[:4]}.{name.partition('.')[2]}", value) if isinstance(value, list) else value
        for field, value in DIVISIONS[division][0].items()
    }


FORMATS |= {f"{side}.{name.partition('.')[2]}": make for side in ("vali", "test") for name, make in [*FORMATS.items()]}


def encoders(kind, training, folder):
    """Fields of a task for a tokenizer, and the ids that the tokenizers library (or Python, for bytes) gives."""
    if kind == "bytes":
        return {}, lambda text: list(text.encode())
    data = word_tokenizer(WORDS)
    if kind == "bpe":
        data = train_bpe((row["text"] for row in training), 290).decode()
    (folder / "words.json").write_text(data)
    library = Tokenizer.from_str(data)
    library.no_truncation()
    fields = {"bpe_vocabulary": 290} if kind == "bpe" else {"tokenizer": str(folder / "words.json")}
    return fields, lambda text: library.encode(text).ids


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe", "file"])
@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_labelled_texts_are_those_of_a_loop(name, division, tokenizer, tmp_path):
    sides = DIVISIONS[division][1]()
    fields, encode = encoders(tokenizer, sides[0], tmp_path)
    fields |= fields_of(division, tmp_path, name)
    task = TextLabels(path=written(tmp_path, name), text="text", label="label", max_length=LENGTH, **fields, **SIZES)
    source = jax.device_get(task.load())
    names = sorted({row["label"] for row in sides[0]})
    assert task.labels == tuple(names)
    assert task.classes == len(names)
    for batch, rows in zip((source.train, source.held_out, source.tested), sides, strict=True):
        if not rows:
            assert batch is None
            continue
        assert len(batch.inputs) == len(rows)
        for i, row in enumerate(rows):
            ids = encode(row["text"])[:LENGTH]
            assert batch.inputs[i][batch.valid[i]].tolist() == ids
            assert batch.valid[i].tolist() == [True] * len(ids) + [False] * (LENGTH - len(ids))
            assert names[batch.targets[i]] == row["label"]
        assert batch.weights.tolist() == [1] * len(rows)
    assert task.vocabulary > source.train.inputs.max()
    counts = {f"{side}_rows": len(rows) for side, rows in zip(("training", "validation", "test"), sides, strict=True)}
    assert counts.items() <= task.fingerprint().items()


@pytest.mark.parametrize("name", PLAIN)
def test_every_format_has_the_same_rows(name, tmp_path):
    fields = {"text": "text", "label": "label", "max_length": LENGTH, **SIZES}
    rows = [*ROWS, dict.fromkeys(ROWS[0], "x\ty") | {"label": "no"}]
    tasks = [TextLabels(path=written(tmp_path, one, rows), **fields) for one in ("a.jsonl", name)]
    assert same(tasks[0].load(), tasks[1].load())
    assert tasks[0].references() == tasks[1].references()


CELL = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(str.strip)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=4), st.sampled_from(PLAIN))
@settings(max_examples=150, deadline=None)
def test_every_cell_is_read_as_it_was_written(cells, name):
    rows = [{"first column": first, "b": second} for first, second in cells]
    with tempfile.TemporaryDirectory() as folder:
        read = read_cells(written(Path(folder), name, rows), ("b", "first column"))
    assert [row.values for row in read] == [
        {column: row[column].strip() for column in ("b", "first column")} for row in rows
    ]


def test_a_carriage_return_outside_quotes_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text,label\nx\ry,yes\n")
    with pytest.raises(UserError, match=r"line 2.*carriage return"):
        read_cells(str(tmp_path / "a.csv"), ("text", "label"))


def test_pairs_are_those_of_paired_files(tmp_path):
    """The lines of two files, which another reader reads, with the same division given as files."""
    lines = [{"de": f"zeile {'x' * (i % 9)} {i}", "en": f"line {i}"} for i in range(30)]
    parts = {"train": lines[:20], "valid": lines[20:]}
    for name, rows in parts.items():
        for column in ("de", "en"):
            (tmp_path / f"{name}.{column}").write_text("\n".join(row[column] for row in rows))
    paths = {name: [str(tmp_path / f"{name}.{column}") for column in ("de", "en")] for name in parts}
    sizes = {"max_length": 16, "batch_size": 4, "evaluation_batches": 2}
    table, held_out = (
        written(tmp_path, name, rows) for name, rows in (("a.csv", lines[:20]), ("vali.csv", lines[20:]))
    )
    for changes in ({}, {"form": "joined"}, {"buckets": 2}):
        files = PairedFiles(
            source_path=paths["train"][0],
            target_path=paths["train"][1],
            validation=TextPair(source_path=paths["valid"][0], target_path=paths["valid"][1]),
            **sizes,
            **changes,
        )
        pairs = Pairs(path=table, validation_path=held_out, source="de", target="en", **sizes, **changes)
        assert same(files.load(), pairs.load())
        assert pairs.counts() == files.counts()
        assert pairs.vocabulary == files.vocabulary


def test_a_table_is_standardised_and_each_column_has_its_vector(tmp_path):
    """The model's input equals x_j w_j + b_j for a number and a row of a table for a category, by a loop in float64."""
    path = written(tmp_path, "a.csv")
    task = TableRows(
        path=path, numbers=("weight", "id"), categories=("author",), label="label", validation_tenths=4, **SIZES
    )
    task = task.replace(group="author")
    train, validation, _ = divided(ROWS, (4, 1), "author")
    config = ModelConfig(d_model=8, layers=1, inputs=task.inputs, head=Classifier(classes=task.classes))
    Run(task=task, model=config)
    weights = model.init(jax.random.key(0), config).embedding
    rng = np.random.default_rng(0)
    matrix, bias = rng.normal(size=weights.matrix.shape), rng.normal(size=8)
    authors = sorted({row["author"] for row in train})
    assert task.inputs == Vectors(width=4 + len(authors))
    for rows, batch in ((train, task.load().train), (validation, task.load().held_out)):
        assert len(rows) == len(batch.inputs)
        for i, row in enumerate(rows):
            expected = []
            for j, column in enumerate(("weight", "id")):
                values = np.array([one[column] for one in train], float)
                mean = sum(values) / len(values)
                deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
                expected.append((row[column] - mean) / deviation * matrix[2 * j] + matrix[2 * j + 1] + bias)
            known = row["author"] in authors
            expected.append(bias + (matrix[4 + authors.index(row["author"])] if known else 0))
            assert known == (rows is train)
            np.testing.assert_allclose(np.asarray(batch.inputs[i]) @ matrix + bias, expected, rtol=1e-4, atol=1e-4)


def test_a_number_is_predicted_in_standard_deviations(tmp_path):
    task = TableRows(path=written(tmp_path, "a.jsonl"), numbers=("id",), target="weight", validation_tenths=3, **SIZES)
    train, validation, _ = [sorted(rows, key=lambda row: row["id"]) for rows in by_id(task)]
    values = np.array([row["weight"] for row in train])
    targets = np.asarray(task.load().held_out.targets)
    expected = [(row["weight"] - values.mean()) / values.std() for row in validation]
    np.testing.assert_allclose(targets[:, 0], expected, rtol=1e-5)
    rows = np.linspace(0, len(expected) - 1, 6).astype(int)
    assert task.references()["training mean"] == pytest.approx(np.square(expected)[rows].mean(), rel=1e-5)
    Run(task=task, model=ModelConfig(inputs=task.inputs, head=Regressor(pool="mean")))
    with pytest.raises(UserError, match=r"model.head is Classifier.*expected Regressor\(numbers=1, pool='mean'"):
        Run(task=task, model=ModelConfig(inputs=task.inputs, head=Classifier(classes=2)))


def test_a_target_that_never_differs_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("n,y\n" + "".join(f"{i},7\n" for i in range(40)))
    with pytest.raises(UserError, match=r"column 'y' is 7 in all \d+ training rows of '.*'; expected a target"):
        TableRows(path=str(tmp_path / "a.csv"), numbers=("n",), target="y", **SIZES).load()


@pytest.mark.parametrize(("values", "scale"), [
    ([0.1] * 30, None), ([1e200, 3e200, 2e200] * 10, 1e200), ([1e-310, 3e-310, 2e-310] * 10, 1e-310),
    ([1e308, -1e308] * 15, 1e308), ([3.0, 1.0, 7.0] * 10, 1.0),
])  # fmt: skip
def test_numbers_of_every_size_are_standardised(values, scale, tmp_path):
    rows = [{"x": value, "label": "ab"[i % 2]} for i, value in enumerate(values)]
    task = TableRows(path=written(tmp_path, "a.jsonl", rows), numbers=("x",), label="label", **SIZES)
    column = [row.values["x"] for row in task.row_sides()["training"]]
    found = np.asarray(task.load().train.inputs)[:, 0, 0]
    exact = [Fraction(float(value)) for value in column]
    mean = sum(exact) / len(exact)
    deviation = (sum((value - mean) ** 2 for value in exact) / len(exact) / Fraction(scale or 1) ** 2) ** 0.5
    expected = [0.0 if scale is None else float((value - mean) / Fraction(scale)) / deviation for value in exact]
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-12)


def test_a_number_beyond_float32_is_refused_with_its_line(tmp_path):
    rows = [{"x": 1 + i % 3, "label": "ab"[i % 2]} for i in range(30)]
    (tmp_path / "test.csv").write_text("x,label\n2,a\n1e300,b\n")
    task = TableRows(path=written(tmp_path, "a.jsonl", rows), test_path=str(tmp_path / "test.csv"), numbers=("x",),
                     label="label", **SIZES)  # fmt: skip
    with pytest.raises(UserError, match=r"test.csv, line 3: column 'x' is '1e300'; expected a number nearer to those"):
        task.load()


def test_the_rows_of_a_table_are_divided_and_not_their_inputs(tmp_path):
    task = TableRows(
        path=written(tmp_path, "a.csv"), categories=("author",), label="label", validation_tenths=3, **SIZES
    )
    order = sorted(range(len(ROWS)), key=lambda i: hashlib.sha256(str(i).encode()).hexdigest())
    sides = {"validation": order[:14], "test": order[14:19], "training": order[19:]}
    rows = {side: [row.where for row in rows] for side, rows in task.row_sides().items()}
    lines = np.cumsum([2] + [1 + row["text"].count("\n") for row in ROWS])
    assert rows == {side: [f"{task.path}, line {lines[i]}" for i in sorted(own)] for side, own in sides.items()}


def by_id(task):
    sides = task.row_sides()
    return [[ROWS[int(row.values["id"]) // 7] for row in rows] for rows in sides.values()]


def test_notes_count_classes_repeats_lengths_and_the_most_frequent_label(tmp_path):
    repeated = [*ROWS, ROWS[3], ROWS[3] | {"label": "yes"}, ROWS[4] | {"author": "another"}]
    fields = {"path": written(tmp_path, "a.csv", repeated), "test_path": written(tmp_path, "test.csv", ROWS[:9])}
    task = TextLabels(text="text", label="label", max_length=LENGTH, group="author", batch_size=50, **fields)
    train, validation, _ = divided(repeated, (1, 0), "author")
    sides = {"training": train, "validation": validation, "test": ROWS[:9]}
    text = " ".join(task.notes())
    assert f"{len(repeated) + 9} rows: {len(train)} for training, {len(validation)} for validation, 9 for test" in text
    texts = {side: [row["text"] for row in rows] for side, rows in sides.items()}
    again = sum(len(one) - len({*one}) for one in texts.values())
    shared = [sum(one in texts["training"] for one in texts[side]) for side in ("validation", "test")]
    assert (
        f"{again} rows have the inputs of an earlier row of their side; {shared[0]} validation and {shared[1]} test"
        in text
    )
    every = [row for rows in sides.values() for row in rows]
    conflicts = sum(
        len({row["label"] for row in every if row["text"] == one}) > 1 for one in {r["text"] for r in every}
    )
    assert f"{conflicts} inputs have more than one 'label'" in text
    groups = {
        row["author"]: {s for s, rows in sides.items() for r in rows if r["author"] == row["author"]} for row in every
    }
    assert f"; {sum(len(one) > 1 for one in groups.values())} of {len(groups)} values of 'author' are on two" in text
    lengths = sorted(len(row["text"].encode()) for row in every)
    assert f"Texts have {lengths[0]} to {lengths[-1]} tokens" in text
    assert f"{sum(length > LENGTH for length in lengths)} texts cut to max_length {LENGTH}" in text
    counts = {side: Counter(row["label"] for row in rows) for side, rows in sides.items()}
    for label in {row["label"] for row in every}:
        assert f"{label} {' / '.join(str(counts[side][label]) for side in sides)}" in text
    [(majority, _)] = counts["training"].most_common(1)
    accuracies = [np.mean([row["label"] == majority for row in sides[side]]) for side in ("validation", "test")]
    assert f"'{majority}' to every row" in text
    assert "an accuracy of {:.3f} in validation and {:.3f} in test".format(*accuracies) in text
    shares = [counts["training"][row["label"]] / len(train) for row in validation]
    assert task.references()["class shares"] == pytest.approx(-np.log(shares).mean(), rel=1e-5)


def test_labels_that_are_almost_alike_are_named(tmp_path):
    labels = ["good"] * 30 + ["goood"] + ["Bad"] * 9 + ["bad"] * 8 + ["other", "another"]
    rows = [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]
    files = {
        "validation_path": written(tmp_path, "vali.csv", rows[:1]),
        "test_path": written(tmp_path, "test.csv", rows[:1]),
    }
    notes = " ".join(TextLabels(path=written(tmp_path, "a.csv", rows), **TEXTS, **files).notes())
    assert "'goood' (1 row) is written almost like 'good'" in notes
    assert "'bad' (8 rows) is written almost like 'Bad'" in notes
    assert notes.count("written almost like") == 2


def test_labels_that_are_one_number_in_two_notations_are_named(tmp_path):
    labels = ["1"] * 20 + ["1.0"] * 9 + ["2"] * 20 + ["10000001", "10000002"] * 9
    rows = [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]
    files = {
        "validation_path": written(tmp_path, "vali.csv", rows[:1]),
        "test_path": written(tmp_path, "test.csv", rows[:1]),
    }
    notes = " ".join(TextLabels(path=written(tmp_path, "a.csv", rows), **TEXTS, **files).notes())
    assert "'1.0' (9 rows) is written almost like '1'" in notes
    assert notes.count("written almost like") == 1


def test_preview_shows_three_training_rows_as_the_model_reads_them(tmp_path):
    path = written(tmp_path, "a.csv")
    rows = divided(ROWS, (1, 1))[0]
    lines = TextLabels(path=path, text="text", label="label", max_length=LENGTH).preview()
    for line, row in zip(lines, (rows[0], rows[(len(rows) - 1) // 2], rows[-1]), strict=True):
        read = row["text"].encode()[:LENGTH].decode(errors="replace")
        assert f"{read!r}, {len(row['text'].encode()[:LENGTH])} tokens and " in line
        assert line.endswith(f"'{row['label']}'")
    pairs = Pairs(path=path, source="text", target="label", max_length=40, bpe_vocabulary=280)
    rows = [row for row in rows if len(pairs.encoding.encode(row["text"].encode())) <= 40]
    for changes in ({}, {"form": "joined"}):
        task = pairs.replace(**changes)
        train = jax.device_get(task.load().train)
        for line, i in zip(task.preview(), (0, (len(rows) - 1) // 2, len(rows) - 1), strict=True):
            masks = [mask[i] for mask in (train.valid, train.source_valid) if mask is not None]
            assert line.endswith(f"; {sum((~mask).sum() for mask in masks)} of padding")
            assert line.replace("|", "").startswith(repr(rows[i]["text"]))
            assert f"target '{rows[i]['label']}' and the end, {int(train.weights[i].sum())} tokens" in line.replace(
                "|", ""
            )
    lines = TableRows(path=path, numbers=("id",), categories=("author",), target="weight").preview(2)
    assert len(lines) == 2
    assert "id " in lines[0]
    assert "author 'author " in lines[0]


def test_files_of_the_hub_are_downloaded_once_and_read_by_their_suffix(tmp_path, monkeypatch):
    asked = []

    def hf_hub_download(repository, file, repo_type, revision):
        asked.append((repository, file, repo_type, revision))
        if file == "none.csv":
            raise OSError("404: none.csv\nmore")
        return written(tmp_path, file)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(hf_hub_download=hf_hub_download))
    fields = {"text": "text", "label": "label"}
    task = TextLabels(path="hf://datasets/someone/reviews@v2/a.parquet", **fields)
    assert same(task.load(), TextLabels(path=written(tmp_path, "a.jsonl"), **fields).load())
    assert task.fingerprint()["training_rows"] == len(divided(ROWS, (1, 1))[0])
    assert asked == [("someone/reviews", "a.parquet", "dataset", "v2")]
    prepare("hf://datasets/someone/reviews/a.csv", tmp_path / "out", drop="*")
    assert asked[1:] == [("someone/reviews", "a.csv", "dataset", None)]
    for path, message in {
        "hf://datasets/someone/reviews/none.csv": r"cannot be downloaded: 404: none.csv$",
        "hf:someone/reviews": "expected a file of a data set, hf://datasets/OWNER/NAME/FILE",
        "hf://datasets/reviews": "expected a file of a data set, hf://datasets/OWNER/NAME/FILE",
    }.items():
        with pytest.raises(UserError, match=message):
            TextLabels(path=path, **fields).load()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"needs huggingface_hub .*flaxformer\[datasets\]"):
        TextLabels(path="hf://datasets/someone/reviews/b.csv", **fields).load()


GOOD = "text,label,n\ngood,a,1\nbad,b,2\nfine,a,3\npoor,b,4\nnice,a,5\nugly,b,6\n"
TEXTS = {"text": "text", "label": "label"}
BAD = {
    "no file": (None, TEXTS, r"path is '.*', which is not a file; expected a table \(.csv, .tsv, "),
    "empty": ("", TEXTS, "a.csv is empty; expected a line with the names of the columns"),
    "header alone": ("text,label\n", TEXTS, "which has no rows; expected at least one"),
    "no column": (
        GOOD,
        {"text": "texts", "label": "label"},
        "a.csv, line 1 has no column 'texts'; did you mean 'text'",
    ),
    "no header": (GOOD.partition("\n")[2], TEXTS, "a.csv, line 1 has no column 'text'; it has: good, a, 1"),
    "twice": ("text,label,text\na,b,c\n", TEXTS, "a.csv, line 1 names 2 columns 'text'; expected different names"),
    "empty label": (GOOD.replace("fine,a", "fine,"), TEXTS, "a.csv, line 4: column 'label' is empty; expected a value"),
    "blank text": (GOOD.replace("fine", "  "), TEXTS, "a.csv, line 4: column 'text' is empty"),
    "ragged": (GOOD.replace("fine,", "fine, I say,"), TEXTS, r"a.csv, line 4 has 4 cells; expected 3, one per column"),
    "short": (GOOD.replace("poor,b,4", "poor"), TEXTS, r"a.csv, line 5 has 1 cells; expected 3"),
    "open quote": (
        GOOD.replace("fine", '"fine'),
        TEXTS,
        r"a.csv, line 4: unexpected end of data; expected quotes that",
    ),
    "latin": (
        GOOD.replace("fine", "für").encode("latin-1"),
        TEXTS,
        "a.csv, line 4: byte 0xfc at offset 31 is not UTF-8",
    ),
    "utf-16": (GOOD.encode("utf-16"), TEXTS, "a.csv, line 1: byte 0xff at offset 0 is not UTF-8"),
    "one label": (
        GOOD.replace(",b,", ",a,"),
        TEXTS,
        r"column 'label' has 1 different values in \d training rows \('a', …",
    ),
    "swapped": (GOOD, {"text": "label", "label": "n"}, "whose 6 rows have 2 different values of label, none of"),
    "same column": (
        GOOD,
        {"text": "text", "label": "text"},
        "TextLabels reads column 'text' 2 times; expected it once",
    ),
    "no group": (GOOD, TEXTS | {"group": "user"}, "a.csv, line 1 has no column 'user'; it has: text, label, n"),
    "number": (GOOD, {"text": "text", "label": "n"}, "column 'n' has 4 different values in 4 training rows"),
    "few groups": (
        GOOD.replace("n\n", "g\n"),
        TEXTS | {"group": "g", "test_tenths": 8},
        "have 6 different values of g",
    ),
    "few": ("text,label\na,x\nb,y\n", TEXTS, "have 2 different values of text, none of which is left"),
    "both tokenizers": (GOOD, TEXTS | {"tokenizer": "x", "bpe_vocabulary": 300}, "expected one of them"),
    "few tokens": (GOOD, TEXTS | {"bpe_vocabulary": 256}, "bpe_vocabulary is 256; expected a number above 256"),
}
BAD_TABLES = {
    "not a number": (GOOD.replace(",3", ",three"), r"a.csv, line 4: column 'n' is 'three'; expected a finite number"),
    "not finite": (GOOD.replace(",3", ",nan"), r"a.csv, line 4: column 'n' is 'nan'; expected a finite number"),
    "comma": (GOOD.replace(",3", ',"3,5"'), r"a.csv, line 4: column 'n' is '3,5'; expected a finite number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_has_one_message_with_its_place(case, tmp_path):
    data, fields, message = BAD[case]
    if data is not None:
        (tmp_path / "a.csv").write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(UserError, match=message):
        TextLabels(path=str(tmp_path / "a.csv"), **fields).load()


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_numbers_have_one_message_with_their_place(case, tmp_path):
    data, message = BAD_TABLES[case]
    (tmp_path / "a.csv").write_text(data)
    with pytest.raises(UserError, match=message):
        TableRows(path=str(tmp_path / "a.csv"), numbers=("n",), label="label", **SIZES).load()
    with pytest.raises(UserError, match=message):
        TableRows(path=str(tmp_path / "a.csv"), categories=("text",), target="n", **SIZES).load()


@pytest.mark.parametrize(("changes", "message"), [
    ({}, "TableRows.numbers and TableRows.categories are empty"),
    ({"numbers": ("n",), "label": None}, "TableRows.label is None and target None; expected one of them"),
    ({"numbers": ("n",), "target": "n"}, "TableRows.label is 'label' and target 'n'; expected one of them"),
    ({"numbers": ("n", "n")}, "TableRows reads column 'n' 2 times"),
])  # fmt: skip
def test_a_table_needs_columns_and_one_target(changes, message):
    with pytest.raises(UserError, match=message):
        TableRows(**({"path": "a.csv", "label": "label"} | changes))


@pytest.mark.parametrize(("name", "data", "message"), [
    ("a.jsonl", '{"text": "x"}\n', "a.jsonl, line 1 has no field 'label'; it has: text"),
    ("a.jsonl", '{"text": "x", "label": null}\n', "a.jsonl, line 1: column 'label' is empty"),
    ("a.jsonl", '{"text": ["x"], "label": 1}\n', r"line 1: column 'text' is \['x'\]; expected text or a number"),
    ("a.jsonl", '{"text": "x", "label": NaN}\n', "a.jsonl, line 1: column 'label' is nan; expected a value"),
    ("a.jsonl", '{"text": "x", "text": "y", "label": 1}\n', "line 1: .* an object has the name 'text' 2 times"),
    ("a.jsonl", 'text,label\n', "a.jsonl, line 1: expected a JSON object, but"),
    ("a.parquet", "PAR1", "a.parquet: expected a Parquet file, but"),
    ("a.json", "[]", r"a.json' is JSON in another format by its name; expected .csv"),
    ("a.xlsx", "PK", r"a.xlsx' is a table in another format by its name; expected .csv"),
    ("a.txt", "text,label", r"a.txt' is not a table by its name; expected .csv"),
])  # fmt: skip
def test_other_formats_and_damaged_ones_are_refused(name, data, message, tmp_path):
    (tmp_path / name).write_text(data)
    with pytest.raises(UserError, match=message):
        TextLabels(path=str(tmp_path / name), **TEXTS).load()


def test_a_label_without_training_rows_is_refused_with_its_line(tmp_path):
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "test.csv").write_text("text,label\nfine,a\nso so,bb\n")
    with pytest.raises(
        UserError, match=r"test.csv, line 3, for test: column 'label' is 'bb', a label that no training row"
    ):
        TextLabels(path=str(tmp_path / "a.csv"), test_path=str(tmp_path / "test.csv"), **TEXTS).load()


def test_a_character_without_a_token_is_refused_with_its_line(tmp_path):
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "t.json").write_text(json.dumps({"format": "flaxformer characters", "characters": sorted("adbgo")}))
    with pytest.raises(UserError, match=r"a.csv, line .: column 'text': the text has '.'"):
        TextLabels(path=str(tmp_path / "a.csv"), tokenizer=str(tmp_path / "t.json"), **TEXTS).load()


def test_models_are_checked(tmp_path):
    task = TextLabels(path=written(tmp_path, "a.csv"), **TEXTS)
    good = ModelConfig(vocabulary=256, head=Classifier(classes=3), mask_pattern="bidirectional")
    Run(task=task, model=good)
    for changes, message in (
        ({"vocabulary": 255}, "model.vocabulary is 255; expected at least the task's 256 tokens"),
        ({"head": Classifier(classes=2)}, r"expected Classifier\(classes=3\), for the labels 'maybe so', 'no', 'yes'"),
        ({"head": Classifier(classes=3, pool="none")}, "expected Classifier"),
    ):
        with pytest.raises(UserError, match=message):
            Run(task=task, model=good.replace(**changes))


def test_labels_of_many_digits_are_texts(tmp_path):
    rows = [{"text": f"text {i}", "label": str(i % 2 + 1) * 5000} for i in range(30)]
    assert TextLabels(path=written(tmp_path, "a.jsonl", rows), **TEXTS).labels == ("1" * 5000, "2" * 5000)


def test_integer_labels_are_in_the_order_of_their_values(tmp_path):
    rows = [{"text": f"text {i}", "label": [10, 9, -2][i % 3]} for i in range(30)]
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        assert TextLabels(path=written(tmp_path, name, rows), **TEXTS).labels == ("-2", "9", "10")
