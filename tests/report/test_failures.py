"""What a report says of seeds that are missing and of runs that failed: the real numbers, and every cause."""

import io

import pytest
from rich.console import Console
from study.tiny import EQUAL, LOWER, NORM, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report import markdown, phrasing, terminal
from flaxformer.report.document import document
from flaxformer.report.files import write
from flaxformer.store.places import REPORT
from flaxformer.store.store import Store


def with_failures(folder, causes, claims=(LOWER, EQUAL), seeds=4, **changes):
    """A folder whose trials of these names failed, for these causes."""
    store = fill(folder, tiny(seeds=range(seeds), claims=claims, **changes), lambda trial: 2.0 + 0.01 * trial.seed)
    with store.locked():
        rows = store.rows()
        store.remove_rows(list(causes))
        for trial, cause in causes.items():
            row = rows[trial]
            store.append(row.group, row | {"status": "failed", "cause": cause, "error": f"Traceback: {cause}"})
    return Store(folder)


def headline(store):
    return "; ".join(phrasing.describe_runs(analyse(store)))


@pytest.mark.every(2, "long")
@pytest.mark.parametrize(
    ("failed", "words"),
    [
        ([], "16 of 16 runs, 4 paired seeds;"),
        (["norm=pre,rate=high,seed=1"], "15 of 16 runs, 3 to 4 of 4 paired seeds, by claim;"),
        (["norm=pre,rate=low,seed=1"], "15 of 16 runs, 3 of 4 paired seeds;"),
        (
            ["norm=pre,rate=low,seed=1", "norm=post,rate=low,seed=2"],
            "14 of 16 runs, 2 to 3 of 4 paired seeds, by claim;",
        ),
        ([f"norm=pre,rate=low,seed={seed}" for seed in range(4)], "12 of 16 runs, 0 of 4 paired seeds;"),
    ],
)
def test_the_headline_has_the_seeds_that_claims_compare(tmp_path, failed, words):
    assert headline(with_failures(tmp_path, dict.fromkeys(failed, "OSError: no"))).startswith(words)


def test_without_claims_the_headline_has_the_seeds_of_the_arms(tmp_path):
    failed = {"norm=pre,seed=1": "OSError: no"}
    store = with_failures(tmp_path, failed, claims=(), axes=(NORM,))
    assert headline(store).startswith("7 of 8 runs, 3 to 4 of 4 paired seeds, by arm;")


@pytest.mark.long
def test_every_cause_of_failure_is_shown_with_its_number(tmp_path):
    causes = {f"norm=pre,rate=high,seed={seed}": f"ValueError: cause {min(seed, 2)}" for seed in range(4)}
    store = with_failures(tmp_path, causes | {"norm=post,rate=high,seed=0": "ValueError: cause 0"})
    wanted = ["2 × ValueError: cause 0", "2 × ValueError: cause 2", "1 × ValueError: cause 1"]
    assert sorted(phrasing.failures(analyse(store))) == sorted(wanted)
    analysis = write(store)
    console = Console(width=300, record=True, file=io.StringIO())
    terminal.show(console, analysis)
    page = (store.root / REPORT).read_text()
    for text in (console.export_text(), page, markdown.render(document(analysis))):
        assert all(f"cause {number}" in text for number in range(3))
    assert all(f"Traceback: ValueError: cause {number}" in page for number in range(3))


def test_many_causes_are_counted(tmp_path):
    causes = {f"norm={norm},rate=high,seed={seed}": f"{norm} {seed}" for norm in ("pre", "post") for seed in range(4)}
    found = phrasing.failures(analyse(with_failures(tmp_path, causes)))
    assert len(found) == 6
    assert found[-1] == "and 3 other causes"
