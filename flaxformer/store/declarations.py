"""Declaration of a study in its folder; results of another recipe or of other code are refused, not mixed with it."""

import contextlib
import itertools
from collections.abc import Collection
from pathlib import Path

from flaxformer.store import declaration_log, records
from flaxformer.store.checks import is_finished
from flaxformer.store.compact import compact
from flaxformer.store.leases import wait_for_dead_leases
from flaxformer.store.round_trip import check_round_trip
from flaxformer.store.store import SUPERSEDED, Store
from flaxformer.system.digests import DamagedError, JsonObject
from flaxformer.system.errors import UserError
from flaxformer.system.files import make_folder, set_aside
from flaxformer.system.json_differences import differences
from flaxformer.system.user_code import changes, read_records
from flaxformer.system.user_code.changes import OnCodeChange

MOST_TRIALS = 12
"""Number of trials that an error message lists."""


def declare(
    store: Store, declaration: JsonObject, on_code_change: OnCodeChange = "refuse", file: Path | None = None
) -> JsonObject:
    """Write a declaration to study.json and to the log, and return it as written; call it under the store's lock.

    What is written also holds "declaration", the digest of the log's last entry, for the results to hold.

    Args:
      store: the study's folder.
      declaration: what the study declares, as plain data.
      on_code_change: what to do with results whose user code, or what it read, has changed since: "refuse" to go on;
        "keep" them, and record that in the declaration; or "retrain", which moves them to superseded/ so that they
        count as missing.
      file: file of the study, whose folder the paths of files that user code has read are relative to.

    Raises:
      UserError: an arm of this name was run with another recipe, or by other code; the message lists what differs.
    """
    changes.check_decision(on_code_change)
    path = store.root / "study.json"
    try:
        old = store.read_declaration()
    except FileNotFoundError:
        old = {"recipes": {}}
    except DamagedError as error:
        old = {"recipes": {}}
        store.set_aside(path, str(error))
    recipes = old["recipes"]
    _check_name(store, old, declaration)
    _check_recipes(store, old, declaration)
    if not recipes:
        _check_fingerprints(store, declaration)
    check_round_trip(declaration)
    existing = declaration_log.existing_results(store, old)  # before any are set aside
    decided = _apply_code_change(store, old, declaration, on_code_change, file)
    head = declaration_log.declare(store, declaration, existing)
    others = {arm: recipe for arm, recipe in recipes.items() if arm not in declaration["recipes"]}
    recipes = declaration["recipes"] | others
    written = declaration | decided | {"recipes": recipes, "declaration": head}
    records.write_document(path, compact(written))
    return written


def check_recipes(store: Store, declaration: JsonObject) -> None:
    """Refuse a folder with results of another recipe, before anything is written or counted.

    Raises:
      UserError: an arm of this name was run with another recipe; the message lists what differs.
    """
    with contextlib.suppress(FileNotFoundError, DamagedError):
        old = store.read_declaration()
        _check_name(store, old, declaration)
        _check_recipes(store, old, declaration)


def _check_name(store: Store, old: JsonObject, declaration: JsonObject) -> None:
    """Refuse another study than the one that the folder holds."""
    (kind, name), (other_kind, other) = ((one.get("kind"), one.get("name")) for one in (old, declaration))
    if kind is not None and (kind, name) != (other_kind, other):
        raise UserError(
            f"{store.root} holds the {kind} '{name}', not the {other_kind} '{other}'; give --output another folder, or "
            f"name the {other_kind} '{name}' if it continues that one"
        )


def _check_recipes(store: Store, old: JsonObject, declaration: JsonObject) -> None:
    recipes = old["recipes"]
    for arm, recipe in declaration["recipes"].items():
        if changed := differences(_without_code(recipes.get(arm, recipe)), _without_code(recipe)):
            lines = "\n".join(f"  {line}" for line in changed)
            raise UserError(
                f"{store.root} holds results of another recipe for '{arm}':\n{lines}\n"
                "Give --output another folder, or remove this one to start again."
            )

    started = {trial["trial"]: trial.get("initial_weights") for trial in old.get("trials", ())}
    changed_sources = [
        f"  {trial['trial']}: {started[trial['trial']]} -> {trial['initial_weights']}"
        for trial in declaration["trials"]
        if "initial_weights" in trial
        and started.get(trial["trial"], trial["initial_weights"]) != trial["initial_weights"]
    ]
    if changed_sources:
        lines = "\n".join(changed_sources[:MOST_TRIALS])
        raise UserError(
            f"{store.root} holds results of {len(changed_sources)} trials that started from weights that have changed "
            f"since (digests):\n{lines}\nGive --output another folder, or remove this one to start again."
        )


def _without_code(recipe: JsonObject) -> JsonObject:
    """A recipe without the digests of user code, which are compared separately."""
    return {name: value for name, value in recipe.items() if name not in ("code", "measure")}


def _check_fingerprints(store: Store, declaration: JsonObject) -> None:
    """Refuse rows of another recipe if the declaration that they were written under is lost."""
    fingerprints = {trial["trial"]: trial["fingerprint"] for trial in declaration["trials"]}
    for name, row in store.rows().items():
        found = row.fingerprint
        if found is not None and found != fingerprints.get(name, found):
            raise UserError(
                f"{store.root} holds results of another recipe for '{name}': fingerprint {found}; expected "
                f"{fingerprints[name]}. Give --output another folder, or remove this one to start again."
            )


def _apply_code_change(
    store: Store, old: JsonObject, new: JsonObject, on_code_change: OnCodeChange, file: Path | None
) -> JsonObject:
    """Apply `on_code_change`, and return the record of code changes that the new declaration holds.

    Failed runs are not results: they are set aside and trained again in any case.
    """
    changed = changes.compare_declarations(old, new) if "kind" in old else {}
    reads = read_records.changed_reads(store.root, file) if "kind" in old else []
    if reads:
        both = [changes.DERIVED, *(arm for arm in new["recipes"] if arm in old["recipes"])]
        changed = {name: [*changed.get(name, ()), *reads] for name in both}
    record: JsonObject = {name: old[name] for name in ("code_changes", "kept_measurements") if name in old}
    if not changed:
        return record
    rows = [row for row in store.rows().values() if declaration_log.arm_of(row) in changed]
    measured = store.measurements(old) if changes.DERIVED in changed else []
    results = sum(map(is_finished, rows)) + len(measured)
    if results and on_code_change == "refuse":
        raise UserError(changes.refusal(store.root, changed, changes.count_in_words(changed, results)))
    if owner := wait_for_dead_leases(store.leases):
        who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
        raise UserError(f"{store.root}: {who} is training with code that has changed since; stop it, and run again")
    if reads:
        read_records.accept(store.root, file)
    if not results or on_code_change == "retrain":
        _supersede(store, [row.trial for row in rows])
        record.pop("kept_measurements", None)
        if reads and measured:
            set_aside(store.root / "measurements.jsonl", "superseded")
    elif measured:
        measured_by = [*record.get("kept_measurements", []), old["measured_by"]]
        record["kept_measurements"] = list(dict.fromkeys(measured_by))
    if not results:
        return record
    entry = changes.record_decision(on_code_change, changed, results)
    return record | {"code_changes": [*record.get("code_changes", []), entry]}


def _supersede(store: Store, trials: Collection[str]) -> None:
    """Move the rows of trials into superseded/N.parquet, so that the trials are missing and nothing is lost."""
    old = [row for name, row in store.rows().items() if name in trials]
    if not old:
        return
    folder = store.root / SUPERSEDED
    make_folder(folder)
    number = next(n for n in itertools.count(1) if not (folder / f"{n}.parquet").exists())
    records.write_table(folder / f"{number}.parquet", old)
    store.remove_rows(trials)
