"""Declaration of a study in its folder; results of another recipe or of other code are refused, not mixed with it."""

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from flaxformer.store import declaration_log, records
from flaxformer.store.checks import check_round_trip
from flaxformer.store.declaration import Declaration
from flaxformer.store.leases import wait_for_dead_leases
from flaxformer.store.places import SUPERSEDED, next_superseded, weights_folder
from flaxformer.store.rows import Row, is_finished
from flaxformer.store.store import Store
from flaxformer.system.digests import DamagedError
from flaxformer.system.errors import UserError
from flaxformer.system.files import set_aside
from flaxformer.system.json_differences import differences
from flaxformer.system.typed_data import plain
from flaxformer.system.user_code import changes, read_records
from flaxformer.system.user_code.changes import OnCodeChange

T = TypeVar("T")
MOST_TRIALS = 12
"""Number of trials that an error message lists."""
WAYS_ON = "Give --output another folder, or set what differs back, or give the changed arms other labels"
"""Ways on where arms have the names of others with results."""


def declare(
    store: Store, declaration: Declaration, on_code_change: OnCodeChange = "refuse", file: Path | None = None
) -> Declaration:
    """Write a declaration to study.json and to the log, and return it as written; call it under the store's lock.

    What is written also holds the digest of the log's last entry, for the results to hold.

    Args:
      store: the study's folder.
      declaration: what the study declares.
      on_code_change: what to do with results whose user code, or what it read, has changed since: "refuse" to go on;
        "keep" them, and record that in the declaration; or "retrain", which moves them to superseded/ so that they
        count as missing.
      file: file of the study, whose folder the paths of files that user code has read are relative to.

    Raises:
      UserError: an arm of this name was run with another recipe, or by other code; the message lists what differs.
    """
    changes.check_decision(on_code_change)
    path = store.root / "study.json"
    old = None
    try:
        old = store.read_declaration()
    except FileNotFoundError:
        pass
    except DamagedError as error:
        store.set_aside(path, str(error))
    if old is not None:
        _check_name(store, old, declaration)
        _check_recipes(store, old, declaration)
    if old is None or not old.recipes:
        _check_fingerprints(store, declaration)
    check_round_trip(declaration)
    existing = declaration_log.existing_results(store, old)  # before any are set aside
    if old is not None:
        declaration = _apply_code_change(store, old, declaration, on_code_change, file)
    head = declaration_log.declare(store, declaration, existing)
    recipes = declaration.recipes | ({} if old is None else _without(old.recipes, declaration.recipes))
    written = replace(declaration, recipes=recipes, declaration=head)
    records.write_document(path, plain(written))
    return written


def _without(values: dict[str, T], names: Collection[str]) -> dict[str, T]:
    """The values of all but some names."""
    return {name: value for name, value in values.items() if name not in names}


def check_recipes(store: Store, declaration: Declaration) -> None:
    """Refuse a folder with results of another recipe, before anything is written or counted.

    Raises:
      UserError: an arm of this name was run with another recipe; the message lists what differs.
    """
    with contextlib.suppress(FileNotFoundError, DamagedError):
        old = store.read_declaration()
        _check_name(store, old, declaration)
        _check_recipes(store, old, declaration)


def _check_name(store: Store, old: Declaration, declaration: Declaration) -> None:
    """Refuse another study than the one that the folder holds."""
    kind, other = declaration.kind, declaration.name
    if (old.kind, old.name) != (kind, other):
        raise UserError(
            f"{store.root} holds the {old.kind} '{old.name}', not the {kind} '{other}'; give --output another folder, "
            f"or name the {kind} '{old.name}' if it continues that one"
        )


def _check_recipes(store: Store, old: Declaration, declaration: Declaration) -> None:
    for arm, recipe in declaration.recipes.items():
        former = old.recipes.get(arm, recipe)
        if changed := differences(*(plain(replace(version, code={})) for version in (former, recipe))):
            lines = "\n".join(f"  {line}" for line in changed)
            raise UserError(
                f"{store.root} holds results of another recipe for '{arm}':\n{lines}\n"
                f"{WAYS_ON}; results under other labels stay."
            )

    started = {trial.trial: trial.initial_weights for trial in old.trials}
    changed_sources = [
        f"  {trial}: {started[trial]} -> {weights}"
        for trial, weights in declaration.initial_weights.items()
        if started.get(trial, weights) != weights
    ]
    if changed_sources:
        lines = "\n".join(changed_sources[:MOST_TRIALS])
        raise UserError(
            f"{store.root} holds results of {len(changed_sources)} trials that started from weights that have changed "
            f"since (digests):\n{lines}\n{WAYS_ON}."
        )


def _check_fingerprints(store: Store, declaration: Declaration) -> None:
    """Refuse rows of another recipe if the declaration that they were written under is lost."""
    fingerprints = declaration.fingerprints
    for name, row in store.rows().items():
        fingerprint = row.fingerprint
        if fingerprint is not None and fingerprint != fingerprints.get(name, fingerprint):
            raise UserError(
                f"{store.root} holds results of another recipe for '{name}': fingerprint {fingerprint}; expected "
                f"{fingerprints[name]}. {WAYS_ON}."
            )


def _apply_code_change(
    store: Store, old: Declaration, new: Declaration, on_code_change: OnCodeChange, file: Path | None
) -> Declaration:
    """Apply `on_code_change`, and return the new declaration with the record of code changes.

    Failed runs are not results: they are set aside and trained again in any case. Results at the rungs of a halving
    count here too, since they are to be rows of the study; those in the folder of a rung are set aside there.
    """
    rungs = declaration_log.rung_stores(store)
    changed = _changed_code(old, new)
    reads = [text for folder in (store, *rungs) for text in read_records.changed_reads(folder.root, file)]
    if reads:
        both = [changes.DERIVED, *(arm for arm in new.recipes if arm in old.recipes)]
        changed = {name: [*changed.get(name, ()), *reads] for name in both}
    new = replace(new, **{name: getattr(old, name) for name in ("code_changes", "kept_measurements", "kept_results")})
    if not changed:
        return new
    rows = [row for row in store.rows().values() if declaration_log.arm_of(row) in changed]
    at_rungs = [row for rung in rungs for row in rung.rows().values() if declaration_log.arm_of(row) in changed]
    measured = store.measurements(old) if changes.DERIVED in changed else []
    results = len({row.trial for row in (*rows, *at_rungs) if is_finished(row)}) + len(measured)
    decided = changes.decide(store.root, on_code_change, changed, results)
    if owner := wait_for_dead_leases(store.leases):
        who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
        raise UserError(f"{store.root}: {who} is training with code that has changed since; stop it, and run again")
    if reads:
        kept = {row.trial for row in rows if is_finished(row)} if on_code_change == "keep" else set()
        _set_training_aside(store, {*new.fingerprints, *(row.trial for row in rows)} - kept)
        read_records.accept(store.root, file)  # only now: a process that ends before leaves the change to the next one
    if not results or on_code_change == "retrain":
        supersede(store, [row.trial for row in rows])
        new = replace(new, kept_measurements=(), kept_results=_without(old.kept_results, {row.trial for row in rows}))
        if reads and measured:
            set_aside(store.root / "measurements.jsonl", SUPERSEDED)
    else:
        kept_at_rungs = {row.trial: old.fingerprints[row.trial] for row in at_rungs if row.trial in old.fingerprints}
        new = replace(new, kept_results=kept_at_rungs | old.kept_results | _fingerprints_of(rows, old))
        if measured and old.kind == "probe":
            new = replace(new, kept_measurements=tuple(dict.fromkeys([*old.kept_measurements, old.measured_by])))
    if old.kind != "probe":  # derived numbers are computed again
        decided = [replace(change, results=change.results - len(measured)) for change in decided]
    return replace(new, code_changes=(*new.code_changes, *decided))


def _fingerprints_of(rows: Sequence[Row], old: Declaration) -> dict[str, str]:
    """Return the fingerprints of rows by trial; of a trial that `old` declares, only if the row was its result."""
    trials = {trial.trial: trial for trial in old.trials}
    return {
        row.trial: row.fingerprint
        for row in rows
        if row.fingerprint and (row.trial not in trials or trials[row.trial].accepts(row.seed, row.fingerprint))
    }


def _changed_code(old: Declaration, new: Declaration) -> dict[str, list[str]]:
    """Return the definitions that changed, by arm; under `changes.DERIVED`, those of measured or derived numbers.

    Only arms that both declarations have, and of them those with a change, are in the result.
    """
    pairs = {arm: (old.recipes[arm].code, recipe.code) for arm, recipe in new.recipes.items() if arm in old.recipes}
    pairs[changes.DERIVED] = old.code, new.code
    changed = {arm: changes.compare_digests(*pair) for arm, pair in pairs.items()}
    return {arm: definitions for arm, definitions in changed.items() if definitions}


def _set_training_aside(store: Store, trials: Collection[str]) -> None:
    """Set aside all partial runs, and the weights of trials that are trained again, which began with other reads."""
    for folder in (store.unfinished, *(weights_folder(store.root, trial) for trial in trials)):
        if folder.exists():
            set_aside(folder, SUPERSEDED)


def supersede(store: Store, trials: Collection[str]) -> None:
    """Move the rows of trials into superseded/N.parquet, so that the trials are missing and nothing is lost.

    Call it under the store's lock.
    """
    old = [row for name, row in store.rows().items() if name in trials]
    if not old:
        return
    records.write_table(next_superseded(store.root, ".parquet"), old)
    store.remove_rows(trials)
