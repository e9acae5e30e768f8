"""Texts of a folder are data: a hostile one in any field of any file reaches no output as a command or as markup."""

import contextlib
import copy
import itertools
import json
import re
import shutil

import numpy as np
import polars as pl
import pytest
from ledger.ledgers import begun
from study.tiny import BASELINE, LOWER, NORM, RATE, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.replication import compare_claims
from flaxformer.checkpoint import Checkpoints, write_config
from flaxformer.cli import main
from flaxformer.ledger import log as ledger_log
from flaxformer.report import figures, replication
from flaxformer.report.texts import csv_cell, passive
from flaxformer.store import declaration_log, job_log, line_forms, records, trial_measurements
from flaxformer.store.line_forms import MeasuringLaunch, TrialMeasurement
from flaxformer.store.log_entries import Replication, Verification, read_entry
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim
from flaxformer.system import digests
from flaxformer.system.errors import UserError
from flaxformer.system.json_reader import parse_json
from flaxformer.system.typed_data import convert
from flaxformer.system.user_code.contents import KINDS

MARKUP = "=cmd|x# heading{n}<script>alert({n})</script><img src=x{n}> \"'[a](javascript:{n})$x^{{$ \\\\input{{x}}"
CONTROL = "x\x1b]0;pwn\x07\x9b31m\u202e\u2066\u2028\r\n\n# heading{n}\n<script>alert({n})</script>"
TEXTS = {"markup": MARKUP, "control characters": CONTROL}
"""Hostile texts, each with the number of its place; the kinds are apart, since control characters are often refused."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
TAG = r"<script>alert|<img src=x"
ACTIVE = {
    ".md": re.compile(rf"^\s*(- )?# heading|{TAG}|\]\(javascript", re.MULTILINE),
    ".html": re.compile(TAG),
    ".svg": re.compile(TAG),
    ".csv": re.compile(r'(^|[,"\n])[=@](cmd|SUM)'),
    ".tex": re.compile(r"<script|\\input\{x"),
}
SHOWN = re.compile(r"alert(?:\\?\(|&#40;)(\d+)")


JOB_LOG = [
    {"kind": "launch", "step": 0, "parameters": 9, "flops_per_step": 9.0, "tokens_per_step": 9, "device": "a device"}
    | {"devices": 1, "peak": None, "time": "2026-01-01T00:00:00", "file": "job.py"},
    {"kind": "steps", "step": 6, "loss": [2.0] * 6, "seconds": 1.0, "elapsed": 2.0, "goodput": 0.5},
    {"kind": "evaluation", "step": 6, "validation_loss": 2.0, "validation_a_name": 2.0},
    {"kind": "sample", "step": 6, "prompt": "a prompt", "text": "a text"},
    {"kind": "test", "step": 6, "test_loss": 2.0},
    {"kind": "time", "step": 6, "elapsed": 3.0, "goodput": 0.3, "starting": 1.0},
]


def gap(rows):
    return {"gap": float(len(rows))}


def whole(root):
    """Write a folder with a line of every kind in every file that a command reads."""
    study = tiny(derive=gap, claims=(LOWER, Claim("the gap is positive", higher={"quantity": "gap"}, than=0)))
    store = fill(root, study, lambda trial: 1.0 + trial.seed + (trial.arm.labels["rate"] == "low"))
    rows = list(store.rows().values())
    failed = dict(rows[0]) | {"status": "failed", "cause": "a cause", "error": "a traceback", "device": "a device"}
    records.append_line(root / "groups/failed.jsonl", failed)
    function = {"function": "own.py: measure", "measured_by": "1234", "step": None}
    launched = MeasuringLaunch(**function, code={"own.py: measure": "12"}, time="2026-01-01T00:00:00")
    trial_measurements.append(store, launched)
    for one in rows:
        about = {"trial": one.trial, "fingerprint": one.fingerprint, "weights": "56", "at": 6, "seconds": 0.1}
        values = {"sharpness": 1.0 + one.seed}
        trial_measurements.append(store, TrialMeasurement(**function, **about, values=values))
    launch = {"launched": "2026-01-01T00:00:00", "devices": "2 × cpu", "commit": "abc", "platform": "linux", "jax": "1"}
    launch |= {
        "command": "flaxformer run own.py",
        "file": "own.py",
        "code": "ab",
        "precision": "float32",
        "python": "3",
    }
    store.record_launch(launch)
    replication = Replication(seeds=(7, 8), folder="elsewhere", verdicts={"a claim": "supported"})
    assert declaration_log.record_event(store, replication)
    trial = rows[0].trial
    verification = Verification(seed=1, trials=(trial,), finished=12, different={trial: "loss"}, source="x")
    assert declaration_log.record_event(store, verification)
    records.append_line(root / "disagreements.jsonl", {"trial": rows[0].trial, "what": "loss 1 and 2"})
    (root / "reads").mkdir()
    digests.write_document(root / "reads/a.json", {"kind": "file", "name": "data.txt", "found": "12"})
    (root / "leases").mkdir()
    lease = {"token": "1", "host": "a host", "pid": 1, "born": "2", "machine": "m", "heartbeat": 10.0, "started": 1.0}
    (root / "leases/all.lease").write_text(json.dumps(lease | {"trials": [rows[0].trial]}))
    write_config(root / "job", BASELINE, {"own.py: Own": "12"}, source="code/0123/own.py")
    saved = Checkpoints(root / "job")
    saved.save(6, {"w": np.zeros(3)}, {"validation_loss": 1.0})
    saved.wait()
    (root / "job/log.jsonl").write_bytes(b"".join(map(digests.line, JOB_LOG)))
    suggestions = {"round": 0, "paths": ["optimizer.learning_rate"], "points": [["0.001"]]}
    records.append_line(root / "suggestions.jsonl", suggestions)
    (root / "ledger").mkdir()
    entries = []
    attempt = ledger_log.Attempt(number=1, reason="a reason", changes=("a=1",), best="b", recipe="r", notes=("a note",))
    withdrawn = ledger_log.Decision(number=1, verdict="withdrawn", pairs=0, results="")
    for entry in (begun(name="a ledger", unit="nats"), attempt, withdrawn):
        entries.append(ledger_log.append(root / "ledger", entries, entry))
    fill(root / "cases/01_case/small", tiny(claims=(), axes=(RATE,), seeds=range(2)), lambda trial: 1.0)
    case = {
        "number": 1,
        "claim": "It is so.",
        "source": "A text",
        "seconds": 1.0,
        "quick": False,
        "evidence": ["small"],
    }
    (root / "cases/01_case/case.json").write_text(json.dumps(case | {"failure": "it failed"}))
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


def plant(data, path, is_name, text):
    """Put a text at a place of plain data."""
    for key in path[:-1]:
        data = data[key]
    if is_name:
        data[text] = data.pop(path[-1])
    else:
        data[path[-1]] = text


def kinds(found):
    """The first place of each kind: the same path apart from numbers and names of arms, trials and seeds."""
    first = {}
    for path, is_name in found:
        kind = tuple("*" if isinstance(key, int) or "=" in str(key) or "recipes" in path else key for key in path)
        first.setdefault((kind, is_name), (path, is_name))
    return list(first.values())


def write_log(path, lines):
    """Write the log with the digests of its predecessors, and its head, as the package does."""
    written, head = [], None
    for line in lines:
        data = digests.line(line | ({"previous": head} if head or "previous" in line else {}))
        written.append(data)
        head = digests.digest(data[:-1], 16)
    path.write_bytes(b"".join(written))
    digests.write_document(path.with_name("declarations.head"), {"lines": len(written), "last": head})


def write_ledger(path, lines):
    """Write the log of a ledger with the digests of its predecessors; a line that the reader refuses has none."""
    written, previous = [], ""
    for line in lines:
        line = line | {"previous": previous}
        written.append(digests.line(line))
        with contextlib.suppress(digests.FormError):
            previous = ledger_log.digest_of(convert(line, ledger_log.AnyEntry))
    path.write_bytes(b"".join(written))


def write_marker(path, document):
    text = json.dumps(document["body"], sort_keys=True).encode()
    path.write_text(json.dumps(document | {"digest": digests.digest(text, 16)}))


FORMATS = {
    "lines": (
        lambda path: digests.lines(path)[0],
        lambda path, data: path.write_bytes(b"".join(map(digests.line, data))),
    ),
    "log": (lambda path: digests.lines(path)[0], write_log),
    "ledger": (lambda path: digests.lines(path)[0], write_ledger),
    "table": (
        records.read_table,
        lambda path, data: records.write_table(path, pl.DataFrame(data, infer_schema_length=None)),
    ),
    "document": (digests.read_document, digests.write_document),
    "JSON": (lambda path: parse_json(path.read_bytes()), lambda path, data: path.write_text(json.dumps(data))),
    "marker": (lambda path: parse_json(path.read_bytes()), write_marker),
}
FILES = {
    "study.json": "document",
    "declarations.jsonl": "log",
    "declarations.head": "document",
    "launches.jsonl": "lines",
    "trial_measurements.jsonl": "lines",
    "measurements.jsonl": "lines",
    "disagreements.jsonl": "lines",
    "groups/all.parquet": "table",
    "groups/failed.jsonl": "lines",
    "reads/a.json": "document",
    "leases/all.lease": "JSON",
    "job/config.json": "document",
    "job/6/published.json": "marker",
    "job/log.jsonl": "lines",
    "suggestions.jsonl": "lines",
    "ledger/ledger.jsonl": "ledger",
    "cases/01_case/case.json": "JSON",
}
"""Every file of `whole` and its format."""
ROWS = ["groups/all.parquet", "groups/failed.jsonl"]
TOGETHER = [["study.json"], ["declarations.jsonl", "declarations.head"], ROWS]
TOGETHER += [[name for name in FILES if not any(name in names for names in TOGETHER)]]
"""Files whose texts are planted at once, names apart from values."""


SEEN = {
    ("study.json", "question"),
    ("study.json", "name"),
    ("study.json", "unit"),
    ("study.json", "text"),
    ("declarations.jsonl", "folder"),
    ("declarations.jsonl", "source"),
    ("launches.jsonl", "devices"),
    ("launches.jsonl", "commit"),
    ("launches.jsonl", "python"),
    ("trial_measurements.jsonl", "sharpness"),
    ("measurements.jsonl", "gap"),
    ("disagreements.jsonl", "what"),
    ("groups/failed.jsonl", "cause"),
    ("groups/failed.jsonl", "error"),
    ("reads/a.json", "name"),
    ("leases/all.lease", "host"),
    ("job/config.json", "kind"),
    ("job/log.jsonl", "text"),
    ("job/log.jsonl", "prompt"),
    ("ledger/ledger.jsonl", "name"),
    ("ledger/ledger.jsonl", "reason"),
    ("ledger/ledger.jsonl", "unit"),
    ("cases/01_case/case.json", "claim"),
    ("cases/01_case/case.json", "failure"),
}
"""Some fields that a command shows, so that the test plants them where they are read."""


def places_in(root, name):
    """The places of a file, one of each kind."""
    data = FORMATS[FILES[name]][0](root / name)
    found = list(places(data, ()) if isinstance(data, dict) else places(data, ("",)))
    return kinds([(path[1:] if path[0] == "" else path, is_name) for path, is_name in found if path != ("",)])


def is_readable(root, name, data):
    """False if the reader of a file refuses it, or drops one of its lines, for a text that is in it."""
    try:
        if FILES[name] == "log":
            for line in data:
                read_entry(line)
        elif name in line_forms.LINES:
            for line in data:
                convert(line, line_forms.LINES[name])
        elif FILES[name] == "ledger":
            for line in data:
                convert(line, ledger_log.AnyEntry)
        elif name == "job/log.jsonl":
            path = root / name
            FORMATS["lines"][1](path, data)
            return not job_log.sound_lines(path)[1]
        elif name in ROWS:
            for row in data:
                Row.from_columns(row)
        elif name == "reads/a.json":
            return data.get("kind") in KINDS and {"name", "found"} <= set(data)
        elif name == "study.json":
            digests.write_document(root / name, data)
            assert Store(root).declaration
    except ValueError:  # a FormError and a UserError are
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return whole(tmp_path_factory.mktemp("hostile") / "whole")


def commands(root, other, names):
    """The commands that read some of these files."""
    if not all(name.startswith(("job/", "cases/", "ledger/")) for name in names):
        yield ["report", str(root)]
        yield ["status", str(root)]
        yield ["compare", str(root), str(other)]
    if any(name.startswith("job/") for name in names):
        yield ["generate", str(root / "job"), "--tokens", "1"]
        yield ["report", str(root / "job")]
        yield ["status", str(root / "job")]
        yield ["compare", str(root / "job"), str(other / "job")]
    if any(name.startswith("ledger/") for name in names):
        yield ["report", str(root / "ledger")]
        yield ["status", str(root / "ledger")]
        yield ["status", str(root / "ledger"), "--json"]
    if any(name.startswith("cases/") for name in names):
        yield ["report", str(root / "cases")]
    if "study.json" in names:
        yield ["report", str(root.parent)]


class Planting:
    """Plants texts in copies of a folder, calls every command on it, and checks what it shows and writes."""

    def __init__(self, folder, scratch, capsys):
        self.folder, self.root, self.capsys = folder, scratch / "out/root", capsys
        self.refused = self.count = 0

    def plant(self, plants):
        """Write a copy of the folder with these plants: (name of the file, path, is_name, text)."""
        shutil.rmtree(self.root.parent, ignore_errors=True)
        shutil.copytree(self.folder, self.root)
        for name in dict.fromkeys(name for name, *_ in plants):
            read, write = FORMATS[FILES[name]]
            data = read(self.root / name)
            for path, is_name, text in sorted(
                ((path, is_name, text) for own, path, is_name, text in plants if own == name),
                key=lambda one: (-len(one[0]), one[1]),  # names of objects last, since what is in them has moved then
            ):
                plant(data, path, is_name, text)
            write(self.root / name, data)

    def check(self, plants, divisions=1):
        """Plant all, and again in halves, up to so many times, where a command refuses the folder.

        Returns:
          the numbers of the texts that were shown.
        """
        self.plant(plants)
        shown, is_refused = set(), False
        for words in commands(self.root, self.folder, {name for name, *_ in plants}):
            self.capsys.readouterr()
            code, (out, err) = main(words), self.capsys.readouterr()
            assert not OBEYED.search(out + err), (plants, words, OBEYED.search(out + err))
            assert (code == 2) == ("error: " in err), (plants, words, err)
            assert code in (0, 2), (plants, words, err)
            shown |= set(SHOWN.findall(out + err))
            is_refused |= code == 2 and words == ["report", str(self.root)]
        with contextlib.suppress(UserError):  # what `replicate` writes
            one, other = analyse(Store(self.root)), analyse(Store(self.folder))
            replication.write(self.root, one.study.question, [*compare_claims(one, other), *compare_claims(one, one)])
        shown |= self.check_files(plants)
        self.count += 1
        self.refused += is_refused
        if is_refused and divisions and len(plants) > 1:
            half = len(plants) // 2
            shown |= self.check(plants[:half], divisions - 1) | self.check(plants[half:], divisions - 1)
        return shown

    def check_files(self, plants):
        shown = set()
        written = [path for path in self.root.parent.rglob("*") if path.suffix in ACTIVE and path.is_file()]
        for path in written:
            text = path.read_text()
            assert not OBEYED.search(text), (plants, path.name, OBEYED.search(text))
            assert not ACTIVE[path.suffix].search(text), (plants, path.name, ACTIVE[path.suffix].search(text))
            shown |= set(SHOWN.findall(text))
        return shown


def all_plants(folder, scratch, text):
    """The places of all files, each with its own text; those that a reader accepts, and those that it refuses."""
    accepted, refused, number = [], [], 0
    shutil.copytree(folder, scratch)
    for name in FILES:
        whole_data = FORMATS[FILES[name]][0](folder / name)
        for path, is_name in places_in(folder, name):
            number += 1
            one = (name, path, is_name, text.format(n=number))
            data = copy.deepcopy(whole_data)
            plant(data, path, is_name, one[-1])
            (accepted if is_readable(scratch, name, data) else refused).append(one)
    return accepted, refused


@pytest.mark.long
@pytest.mark.parametrize("kind", TEXTS)
def test_texts_in_every_file_are_not_obeyed_or_interpreted(folder, tmp_path, capsys, monkeypatch, kind):
    monkeypatch.setattr(figures, "draw", lambda figures, folder: {})
    accepted, refused = all_plants(folder, tmp_path / "scratch", TEXTS[kind])
    planting = Planting(folder, tmp_path, capsys)
    shown = set()
    for names, are_names in itertools.product(TOGETHER, (False, True)):
        shown |= planting.check([one for one in accepted if one[0] in names and one[2] is are_names])
    planting.check([one for one in refused if one[0] == "study.json"][:1])  # which the first of them has refused
    planting.check([one for one in refused if one[0] not in ("study.json", "declarations.jsonl")])
    places_shown = {(one[0], one[1][-1]) for one in accepted if re.search(r"alert.(\d+)", one[3])[1] in shown}
    assert {one for one in SEEN if kind == "markup" or one[0] != "study.json"} <= places_shown


def test_figures_show_texts_as_data(tmp_path, capsys):
    label, text = MARKUP.format(n=1).replace("=", ""), MARKUP.format(n=2)
    rates = Axis("optimizer.learning_rate", {label: 1e-3, "high": 1e-2}, name="rate")
    claim = Claim(text, lower={"rate": "high"}, than={"rate": label})
    fill(tmp_path / "out/root", tiny(axes=(NORM, rates), claims=(claim,)), lambda trial: 1.0 + trial.seed)
    assert main(["report", str(tmp_path / "out/root")]) == 0
    assert {"1", "2"} <= Planting(tmp_path, tmp_path, capsys).check_files([])
    drawn = [path.read_text() for path in tmp_path.glob("out/root/figures/*.svg")]
    assert any("alert(1)" in text for text in drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", TEXTS)
def test_each_text_of_a_file_alone(folder, tmp_path, capsys, monkeypatch, name, kind):
    monkeypatch.setattr(figures, "draw", lambda figures, folder: {})
    planting = Planting(folder, tmp_path, capsys)
    for path, is_name in places_in(folder, name):
        planting.check([(name, path, is_name, TEXTS[kind].format(n=9))])
    assert planting.count


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
