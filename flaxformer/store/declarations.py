"""Writing a study's declaration into its folder: results of another recipe, or of other code, are not mixed with it."""

import itertools
from collections.abc import Collection

from flaxformer.store import records
from flaxformer.store.leases import wait_for_dead_leases
from flaxformer.store.records import DamagedError, Row
from flaxformer.store.store import Store, is_finished
from flaxformer.struct import UserError, differences
from flaxformer.user_code import changes
from flaxformer.user_code.changes import OnCodeChange


def declare(store: Store, declaration: Row, on_code_change: OnCodeChange = "refuse") -> Row:
    """Write a declaration to study.json and return it as written; call it under the store's lock.

    Args:
      store: the study's folder.
      declaration: what the study declares, as plain data.
      on_code_change: what to do with results whose user code has changed since: "refuse" to go on; "keep" them, and
        record that in the declaration; or "retrain", which moves them to superseded/ so that they count as missing.

    Raises:
      UserError: an arm of this name was run with another recipe, or by other code; the message lists what differs.
    """
    changes.check(on_code_change)
    path = store.root / "study.json"
    try:
        old = store.read_declaration()
    except FileNotFoundError:
        old = {"recipes": {}}
    except DamagedError as error:
        old = {"recipes": {}}
        store.set_aside(path, str(error))
    recipes = old["recipes"]
    for arm, recipe in declaration["recipes"].items():
        if changed := differences(_without_code(recipes.get(arm, recipe)), _without_code(recipe)):
            lines = "\n".join(f"  {line}" for line in changed)
            raise UserError(
                f"{store.root} holds results of another recipe for '{arm}':\n{lines}\n"
                "Give --output another folder, or remove this one to start again."
            )
    if not recipes:
        _check_fingerprints(store, declaration)
    decided = _decide(store, old, declaration, on_code_change)
    others = {arm: recipe for arm, recipe in recipes.items() if arm not in declaration["recipes"]}
    written = declaration | decided | {"recipes": declaration["recipes"] | others}
    records.write_document(path, written)
    return written


def _without_code(recipe: Row) -> Row:
    """A recipe without the digests of user code, which are compared separately; older folders have one of `measure`."""
    return {name: value for name, value in recipe.items() if name not in ("code", "measure")}


def _check_fingerprints(store: Store, declaration: Row) -> None:
    """Refuse rows of another recipe when the declaration that they were written under is lost."""
    fingerprints = {trial["trial"]: trial["fingerprint"] for trial in declaration["trials"]}
    for name, row in store.rows().items():
        found = row.get("fingerprint")
        if found is not None and found != fingerprints.get(name, found):
            raise UserError(
                f"{store.root} holds results of another recipe for '{name}': fingerprint {found}; expected "
                f"{fingerprints[name]}. Give --output another folder, or remove this one to start again."
            )


def _decide(store: Store, old: Row, new: Row, on_code_change: OnCodeChange) -> Row:
    """Apply `on_code_change`, and return the record of code changes that the new declaration holds.

    Failed runs are not results: they are set aside and trained again without asking.
    """
    changed = changes.changed_code(old, new) if "kind" in old else {}
    record: Row = {name: old[name] for name in ("code_changes", "kept_measurements") if name in old}
    if not changed:
        return record
    rows = [row for row in store.rows().values() if _arm_of(row) in changed]
    measured = store.measurements(old) if changes.DERIVED in changed else []
    results = sum(map(is_finished, rows)) + len(measured)
    if results and on_code_change == "refuse":
        raise UserError(changes.message(store.root, changed, changes.held(changed, results)))
    if owner := wait_for_dead_leases(store.leases):
        who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
        raise UserError(f"{store.root}: {who} is training with code that has changed since; stop it, and run again")
    if not results or on_code_change == "retrain":
        _supersede(store, [row["trial"] for row in rows])
        record.pop("kept_measurements", None)
    elif measured:
        measured_by = [*record.get("kept_measurements", []), old["measured_by"]]
        record["kept_measurements"] = list(dict.fromkeys(measured_by))
    if not results:
        return record
    entry = changes.entry(on_code_change, changed, results)
    return record | {"code_changes": [*record.get("code_changes", []), entry]}


def _arm_of(row: Row) -> str:
    return str(row["trial"].rpartition(",seed=")[0])


def _supersede(store: Store, trials: Collection[str]) -> None:
    """Move the rows of trials into superseded/N.parquet, so that the trials are missing and nothing is lost."""
    old = [row for name, row in store.rows().items() if name in trials]
    if not old:
        return
    folder = store.root / "superseded"
    if folder.is_symlink():
        raise UserError(f"{folder} is a symbolic link; expected a folder of its own")
    folder.mkdir(exist_ok=True)
    number = next(n for n in itertools.count(1) if not (folder / f"{n}.parquet").exists())
    records.write_table(folder / f"{number}.parquet", old)
    store.remove_rows(trials)
