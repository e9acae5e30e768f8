"""Write the README.md of published/, inversions/ and components/ from records of results and the first lines of files.

A record, results/NAME.json, holds each tested statement of a study with its interval and verdict, its arms, the time,
and the machine. The page of published/ also lists studies and recipes elsewhere in experiments/ whose first lines have
"Published:", with the numbers that stand there.

Command: python experiments/records.py [DIR …]
    DIR is the output folder of a study of these folders, such as runs/least_squares: its record is written first.
"""

import ast
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flaxformer.analysis.analysis import analyse
from flaxformer.claims.record import statements
from flaxformer.report import phrasing
from flaxformer.report.files import results
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.store import Store, read_lines
from flaxformer.system.errors import UserError
from flaxformer.system.wording import count_of, duration

HERE = Path(__file__).parent
ELSEWHERE = ("training", "studies")
"""Folders whose files with "Published:" are listed with the numbers of their first lines."""
SUMMARY = ("study", "published", "measured: the first claim", "verdicts", "command", "time", "machine")
ELSEWHERE_COLUMNS = ("file", "published", "measured", "command")
STATEMENT = {
    "tested": "what was tested",
    "measured": "effect",
    "claimed": "claimed",
    "n": "n",
    "verdict": "verdict",
    "declared": "declared",
}
"""Columns of a tested statement, by its field."""
SOURCES = ("Published", "Source")
"""Fields of which the first table shows the first that a file has."""
FIELDS = ("Question", "Design", "Differences", "Expected", "Result", "Cause")
"""Fields of the first lines that a section shows below the statements."""
PUBLISHED = """# Published numbers, measured here

Each study of this folder takes a number or an ordering of a paper, at a size that two CPU cores train in minutes. Its
first lines say where the number stands in the paper, how the setting differs, what pilots at seeds from 100 on chose,
and what was found. The rule (claims, margins, seeds) was committed before the runs; a refuted or inconclusive
replication is kept. `python experiments/records.py` writes this page from the records in `results/` and from
the first lines of the files; with the output folder of a study, it writes the study's record first.

Effects have the intervals that are tested: 95 %, or 90 % for equalities, over paired seeds (n); verdicts are by the
[rule of reports](../../docs/verdicts.md), Holm-corrected within a study. Times are sums over runs, each on one core
of a machine that was also busy.
"""
INVERSIONS = """# Inversions, explained

Mechanisms whose published effect has another sign elsewhere, or whose loss and abilities disagree. Each study asks for
the cause, with arms that have one part of the mechanism alone. Claims and seeds were committed before the runs; a
section ends with the cause that the arms support, or says that it is open.

Effects have the intervals that are tested: 95 %, or 90 % for equalities, over paired seeds (n); verdicts are by the
[rule of reports](../../docs/verdicts.md), Holm-corrected within a study. Times are sums over runs, each on one core of
a machine that was also busy. `python experiments/records.py` writes this page.
"""
COMPONENTS = """# Components, a study each

A mechanism of the [catalog](../../docs/catalog.md) beside what it replaces, on a task where its source expects a
difference, in a minute or two on two CPU cores. The first lines of a file say what is claimed, by whom, and what was
expected; the rule (claims, margins, seeds) was committed before the recorded runs, and no file was changed after them
but for its line "Result". Whether the same seeds were tried while a file was written is not recorded.
[All mechanisms at their best learning rates](../../docs/effects.md) are another page.

Effects have the intervals that are tested: 95 %, or 90 % for equalities, over paired seeds (n); verdicts are by the
[rule of reports](../../docs/verdicts.md), Holm-corrected within a study. Times are sums over runs, each on one core of
a machine that was also busy. `python experiments/records.py` writes this page.
"""
FOLDERS = {"published": PUBLISHED, "inversions": INVERSIONS, "components": COMPONENTS}
"""First lines of the page of each folder."""


def first_lines(file: Path) -> str:
    """Return the docstring of a file."""
    return ast.get_docstring(ast.parse(file.read_text())) or ""


def field(text: str, *names: str) -> str:
    """Return the text of the first field of a docstring among some, such as "Published"; empty without any."""
    for name in names:
        if part := re.search(rf"^{name}: (.*(?:\n(?![A-Z]\w+: |\n).*)*)", text, re.MULTILINE):
            return " ".join(part[1].split())
    return ""


def command(text: str) -> str:
    """Return the first command of a docstring, without what follows it."""
    line = re.search(r"^Command: (flaxformer [^,(\n]*)", text, re.MULTILINE)
    return line[1].strip() if line else ""


def record_of(folder: Path) -> dict[str, Any]:
    """Return what the page shows of a study's results, on the machine that trained it.

    Raises:
      UserError: runs are missing.
    """
    analysis, launches = analyse(Store(folder)), read_lines(folder / LAUNCHES)
    if analysis.missing:
        raise UserError(f"{folder} lacks {count_of(analysis.missing, 'run')}; expected all: finish the study first")
    rows = results(analysis)
    return {
        "study": analysis.study.name,
        "runs": rows.height,
        "seconds": round(float(rows["seconds"].sum()), 1),
        "date": str(launches[0]["launched"])[:10],
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "versions": {name: launches[-1][name] for name in ("flaxformer", "jax", "python")},
        "statements": [{name: getattr(line, name) for name in STATEMENT} for line in statements([(folder, analysis)])],
        "arms": {phrasing.labels(arm.labels): phrasing.interval(arm.estimate) for arm in analysis.arms},
    }


def processor() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def verdicts(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of statements with each verdict."""
    words = [str(line["verdict"]) for line in lines]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def studies(folder: str) -> list[Path]:
    """Return the files of a folder whose first lines say what was published, or by whom."""
    return [file for file in sorted((HERE / folder).glob("*.py")) if field(first_lines(file), *SOURCES)]


def record_file(study: Path) -> Path:
    """Return the file of the record of a study's file."""
    return study.parent / "results" / f"{study.stem}.json"


def page(folder: str) -> str:
    """Return the content of a folder's README.md."""
    files = studies(folder)
    records = {file: json.loads(record_file(file).read_text()) for file in files if record_file(file).exists()}
    parts = [
        FOLDERS[folder],
        table(SUMMARY, [_row(file, records.get(file)) for file in files]),
        *(_section(file, records[file]) for file in files if file in records),
    ]
    return "\n".join(parts + (_elsewhere() if folder == "published" else []))


def _elsewhere() -> list[str]:
    """Return the list of files of other folders, without records."""
    others = [file for name in ELSEWHERE for file in sorted((HERE / name).glob("*.py"))]
    named = [(file, field(first_lines(file), "Published")) for file in others]
    return [
        "## In other folders\n\nNumbers as the first lines of the files have them, without a record.\n",
        table(ELSEWHERE_COLUMNS, [_other(file, published) for file, published in named if published]),
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (header, ["---"] * len(header), *rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _link(file: Path) -> str:
    return f"[{file.stem}]({Path(os.path.relpath(file, HERE / 'published')).as_posix()})"


def _row(file: Path, record: Mapping[str, Any] | None) -> list[str]:
    """Return the row of a study in the first table."""
    text = first_lines(file)
    head = [_link(file), field(text, *SOURCES)]
    if record is None:
        return [*head, "not run", "open", f"`{command(text)}`", "–", "–"]
    first, *_ = lines = record["statements"]
    measured = f"{first['tested']}: {first['measured']}, claimed {first['claimed']}"
    return [*head, measured, verdicts(lines), f"`{command(text)}`", duration(record["seconds"]), record["machine"]]


def _other(file: Path, published: str) -> list[str]:
    """Return the row of a file of another folder."""
    text = first_lines(file)
    return [_link(file), published, field(text, "Measured", "Result"), f"`{command(text)}`"]


def _section(file: Path, record: Mapping[str, Any]) -> str:
    """Return the tested statements of a study, with its differences and its result."""
    text = first_lines(file)
    title, *_ = text.splitlines()
    versions = [f"{name} {version}" for name, version in record["versions"].items()]
    about = [f"{record['runs']} runs", duration(record["seconds"]), record["date"], record["machine"], *versions]
    rows = [[str(line[name]) for name in STATEMENT] for line in record["statements"]]
    paragraphs = [
        f"## {file.stem}\n",
        f"{title}\n",
        f"{' · '.join(about)}\n",
        table([*STATEMENT.values()], rows),
        *_arms(file, record),
        *(f"{name}: {field(text, name)}\n" for name in FIELDS if field(text, name)),
    ]
    return "\n".join(paragraphs)


def _arms(file: Path, record: Mapping[str, Any]) -> list[str]:
    """Return the figure and the arms of a study that has a figure beside its record."""
    if not record_file(file).with_suffix(".svg").exists():
        return []
    arms = [[name, *interval.split(" ", 1)] for name, interval in record["arms"].items()]
    return [
        f"![Claims of {file.stem}](results/{file.stem}.svg)\n",
        table(("arm or quantity", "mean", "95 %"), arms),
    ]


def write_record(folder: Path) -> None:
    """Write the record of the output folder of a study; in inversions/ with the figure of its claims.

    Raises:
      UserError: no file of the folders has the study.
    """
    record = record_of(folder)
    files = [file for name in FOLDERS for file in studies(name) if f'name="{record["study"]}"' in file.read_text()]
    if not files:
        raise UserError(f"{folder} has the study '{record['study']}'; expected one of {' or '.join(FOLDERS)}")
    path = record_file(files[0])
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if path.parent.parent.name == "inversions":
        shutil.copyfile(folder / "figures" / "claims.svg", path.with_suffix(".svg"))


def main(folders: Sequence[str]) -> None:
    """Write the records of some output folders, and the pages."""
    for name in folders:
        write_record(Path(name))
    for folder in FOLDERS:
        (HERE / folder / "README.md").write_text(page(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
