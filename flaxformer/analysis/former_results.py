"""Results under which a withdrawn claim was declared, also where its arms are renamed, removed or trained again."""

import math
from collections.abc import Mapping, Sequence

from flaxformer.analysis.arms import ArmSummary
from flaxformer.analysis.claim_history import WithdrawnClaim
from flaxformer.store import columns, records
from flaxformer.store.declaration import QUANTITY, Labels
from flaxformer.store.declaration_log import DeclarationLog
from flaxformer.store.log_entries import DeclarationEntry
from flaxformer.store.places import SUPERSEDED
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study.claim import arm_name
from flaxformer.study.divergence import has_score, is_diverged, score
from flaxformer.system.digests import DamagedError


def former_arms(store: Store, log: DeclarationLog, withdrawn: WithdrawnClaim) -> list[ArmSummary]:
    """Return the arms and quantities of a withdrawn claim, with their scores at the seeds of its last declaration.

    Of several rows of a trial, the one counts that was trained by the recipe of that declaration.
    """
    entry, summaries = withdrawn.entry, []
    terms: Sequence[Labels] = [labels for _, labels in withdrawn.claim.terms]
    names = {arm_name(labels): labels for labels in terms if QUANTITY not in labels}
    rows = _former_rows(store, log, entry, [f"{arm},seed={seed}" for arm in names for seed in entry.seeds])
    for arm, labels in names.items():
        arm_rows = [rows.get(f"{arm},seed={seed}") for seed in entry.seeds]
        scores = [_score(row, entry.metric) for row in arm_rows]
        diverged = sum(row is not None and is_diverged(row) for row in arm_rows)
        summaries.append(ArmSummary(labels, scores, arm_rows, diverged))
    measured = {row["seed"]: row["values"] for row in store.measured_by([entry.measured_by])}
    for labels in terms:
        if QUANTITY in labels:
            values = [_finite(measured.get(seed, {}).get(labels[QUANTITY])) for seed in entry.seeds]
            summaries.append(ArmSummary(labels, values, [None] * len(values), 0))
    return summaries


def _former_rows(
    store: Store, log: DeclarationLog, entry: DeclarationEntry, trials: Sequence[str]
) -> Mapping[str, Row]:
    """Return the row of each trial that was trained by the recipe that an entry declares."""
    recipes, by_trial = entry.recipes, {}
    wanted = {*trials}
    for row in [*superseded_rows(store), *columns.rows_of(store, trials).values()] if trials else []:
        arm = row.trial.rpartition(",seed=")[0]
        trained_under = log.at_digest.get(row.declaration or "", entry)
        if row.trial in wanted and trained_under.recipes.get(arm) == recipes.get(arm):
            by_trial[row.trial] = row
    return by_trial


def superseded_rows(store: Store) -> list[Row]:
    """Return the rows that were set aside after a change of code, the earliest first; damage is noted in the store."""
    rows = []
    for path in sorted((store.root / SUPERSEDED).glob("[0-9]*.parquet"), key=lambda path: (len(path.name), path.name)):
        try:
            rows += [Row.from_columns(fields) for fields in records.read_table(path)]
        except (DamagedError, FileNotFoundError, ValueError) as error:
            store.corrupt_files.setdefault(path.relative_to(store.root).as_posix(), str(error))
    return rows


def _score(row: Row | None, metric: str) -> float | None:
    if row is None or row.status not in ("done", "diverged") or not has_score(row, metric):
        return None
    return score(row, metric)


def _finite(value: object) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None
