"""Running a study in this process: what is missing, and only that, into its folder."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from flaxformer.study.declare import Cell, Study
from flaxformer.study.execute import Event, Execution, Finished, execute
from flaxformer.study.plan import Group, declaration, groups
from flaxformer.study.probe import check_quantities
from flaxformer.study.provenance import provenance
from flaxformer.study.store import Row, Store


def store_of(study: Study, execution: Execution) -> Store:
    """The study's folder: `output`, or runs/NAME."""
    return Store(execution.output or Path("runs") / study.name)


def missing(study: Study, store: Store) -> list[Group]:
    """The groups, with only the cells that have no finished run; a failed cell is missing."""
    rows = store.rows()
    done = {name for name, row in rows.items() if row["status"] != "failed"}
    left = [
        dataclasses.replace(group, cells=tuple(cell for cell in group.cells if cell.name not in done))
        for group in groups(study.cells(), study.measure)
    ]
    return [group for group in left if group.cells]


def run(study: Study, execution: Execution) -> Iterator[Event]:
    """Train every missing cell; each finished run is on disk before its event is yielded.

    Raises:
      UserError: another process holds the folder, or it has results of another recipe.
    """
    store = store_of(study, execution)
    with store.locked():
        store.declare(declaration(study))
        store.repair()
        todo = missing(study, store)
        store.record_launch(provenance())
        left = {group.name: len(group.cells) for group in todo}
        for event in execute(todo, execution):
            if isinstance(event, Finished):
                store.append(event.group, event.row)
                left[event.group] -= 1
                if left[event.group] == 0:
                    store.finish(event.group)
            yield event
        if study.derive is not None:
            store.replace_measurements(derived(study, store.rows()))


def derived(study: Study, rows: Mapping[str, Row]) -> list[Row]:
    """What the study derives from the finished runs, at every seed that has all of them.

    Raises:
      UserError: a claim is about a number that is not derived.
    """
    found = []
    for seed in study.seeds:
        own = {arm.name: rows.get(Cell(arm, seed).name) for arm in study.arms()}
        if all(row is not None and row["status"] not in ("failed", "stopped") for row in own.values()):
            values = {name: float(value) for name, value in study.derive(own).items()}  # type: ignore[misc,arg-type]
            check_quantities(study.claims, values)
            found.append({"measured_by": "derived", "seed": seed, "seconds": 0.0, "values": values})
    return found
