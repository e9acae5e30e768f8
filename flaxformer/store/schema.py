"""Types and relations of the plain data in a folder, which another program, or a person, may have written."""

import math
from collections.abc import Collection, Iterator, Mapping

from flaxformer.store.rows import INTEGERS
from flaxformer.system.digests import FormError, JsonObject

Form = type | tuple[type | None, ...] | list["Form"] | dict[str, "Form"]
"""Form of a value: types; a list of one form; or an object, by field ("name?" may be absent, "*" is any other)."""

NUMBER = (int, float)
LABELS: Form = {"*": str}
AXIS: Form = {
    "name": str,
    "path": str,
    "labels": [str],
    "baseline": (str, None),
    "coordinates": {"*": {"*": (int, float, str)}},
}
CLAIM: Form = {
    "text": str,
    "kind": str,
    "by": NUMBER,
    "within": (int, float, None),
    "unit?": str,
    "terms": [list],
    "constant": NUMBER,
    "answers?": {"*": str},
}
SCALING: Form = {
    "axis": str,
    "against": str,
    "held_out": [str],
    "loss?": str,
    "embeddings?": bool,
    "scales?": dict,
}
SCALE = ("flops", "parameters", "tokens")
"""Size of an arm of a scaling law."""
TRIAL: Form = {"trial": str, "group": str, "labels": LABELS, "seed": int, "fingerprint": str}
RECIPE: Form = {"run": dict, "code?": {"*": str}, "semantics?": int, "data?": dict, "until?": int}
DECLARATION: Form = {
    "kind": str,
    "name": str,
    "question": str,
    "metric": str,
    "unit": str,
    "goal?": (str, None),
    "exact?": bool,
    "axes": [AXIS],
    "seeds": [int],
    "claims": [CLAIM],
    "caveats": [str],
    "references": {"*": NUMBER},
    "parameters?": int,
    "evaluation_data?": {"*": {"digest": str, "examples": int, "in_training": int, "compared?": (int, None)}},
    "trials": list,
    "recipes": {"*": RECIPE},
    "code?": {"*": str},
    "measured_by?": str,
    "declaration?": str,
    "kept_measurements?": [str],
    "code_changes?": [{"time": str, "changed": [str], "decision": str, "results?": int}],
}
ENTRY: Form = {
    "time": str,
    "name": str,
    "question": str,
    "caveats": [str],
    "metric": str,
    "unit": str,
    "goal": (str, None),
    "seeds": [int],
    "axes": [{"name": str, "path": str, "labels": [str], "baseline": (str, None)}],
    "claims": [CLAIM],
    "measured_by": (str, None),
    "arms": {"*": str},
    "recipes": {"*": str},
    "code": {"*": str},
    "results": {"*": [int]},
    "faults?": [str],
}
EVENTS: dict[str, Form] = {
    "interim": {"time": str, "finished": int, "declared": int, "reader": str, "faults?": [str]},
    "replication": {"time": str, "seeds": [int], "folder": str, "verdicts?": {"*": str}, "faults?": [str]},
    "verification": {
        "time": str,
        "seed": int,
        "trials": [str],
        "finished": int,
        "different": {"*": str},
        "source": str,
        "faults?": [str],
    },
}
"""Entries of the log of declarations: of a declaration, and of an event of each kind."""
KINDS = ("lower", "higher", "equal")


def check_declaration(data: JsonObject) -> None:
    """Check the types in a declaration, and that its parts fit together.

    Raises:
      FormError: the field, its value, and what was expected.
    """
    check_form("", data, DECLARATION)
    _expect(data["kind"] in ("study", "probe"), "kind", data["kind"], "study or probe")
    _expect(data["kind"] == "probe" or "parameters" in data, "parameters", None, "a number")
    _expect(bool(data["seeds"]) and len(set(data["seeds"])) == len(data["seeds"]), "seeds", data["seeds"], "some")
    axes = {axis["name"]: set(axis["labels"]) for axis in data["axes"]}
    _expect(len(axes) == len(data["axes"]), "axes", list(axes), "different names")
    for number, axis in enumerate(data["axes"]):
        where = f"axes.{number}"
        _expect(bool(axis["labels"]), f"{where}.labels", [], "a label")
        _expect(axis["baseline"] in (None, *axis["labels"]), f"{where}.baseline", axis["baseline"], "one of its labels")
        for name, coordinates in axis["coordinates"].items():
            expected = f"the labels {', '.join(axis['labels'])}"
            _expect(set(coordinates) >= axes[axis["name"]], f"{where}.coordinates.{name}", list(coordinates), expected)
    _check_trials(data["trials"], axes, set(data["seeds"]), data["recipes"])
    for number, claim in enumerate(data["claims"]):
        _check_claim(f"claims.{number}", claim, axes)
    if data.get("scaling") is not None:
        _check_scaling(data["scaling"], axes, {trial["trial"].rpartition(",seed=")[0] for trial in data["trials"]})


def _check_scaling(rule: JsonObject, axes: Mapping[str, set[str]], arms: Collection[str]) -> None:
    """Check a scaling law: its rule, and the size of every arm."""
    check_form("scaling", rule, SCALING)
    _expect(rule["axis"] in axes, "scaling.axis", rule["axis"], f"one of the axes {', '.join(axes)}")
    _expect(rule["against"] in SCALE, "scaling.against", rule["against"], " or ".join(SCALE))
    for arm in arms:
        scale = rule.get("scales", {}).get(arm)
        is_size = isinstance(scale, dict) and all(
            type(scale.get(name)) in (int, float) and 0 <= scale[name] < math.inf for name in SCALE
        )
        _expect(is_size, f"scaling.scales.{arm}", scale, f"numbers: {', '.join(SCALE)}")


def _check_trials(
    trials: list[JsonObject], axes: Mapping[str, set[str]], seeds: Collection[int], recipes: Mapping[str, object]
) -> None:
    """Check every trial; there may be hundreds of thousands, so most are checked without their path."""
    names = set()
    for number, trial in enumerate(trials):
        if not _is_trial(trial):
            check_form(f"trials.{number}", trial, TRIAL)
        name, labels, seed = trial["trial"], trial["labels"], trial["seed"]
        if labels.keys() != axes.keys() or not all(label in axes[axis] for axis, label in labels.items()):
            _check_labels(f"trials.{number}.labels", labels, axes)
        arm, _, own = name.rpartition(",seed=")
        if name in names or seed not in seeds or own != str(seed) or arm not in recipes:
            expected = "a name of its own that ends in ,seed=SEED, of an arm with a recipe and one of the seeds"
            _expect(False, f"trials.{number}.trial", name, expected)
        names.add(name)


def _is_trial(trial: object) -> bool:
    return (
        type(trial) is dict
        and type(trial.get("trial")) is type(trial.get("group")) is type(trial.get("fingerprint")) is str
        and type(trial.get("seed")) is int
        and type(trial.get("labels")) is dict
        and all(type(label) is str for label in trial["labels"].values())
    )


def check_entry(entry: JsonObject) -> None:
    """Check the types in an entry of the log of declarations.

    Raises:
      FormError: the field, its value, and what was expected.
    """
    if entry.get("kind") in EVENTS:
        check_form("", entry, EVENTS[entry["kind"]])
        return
    check_form("", entry, ENTRY)
    if entry.get("scaling") is not None:
        check_form("scaling", entry["scaling"], SCALING)
    for number, claim in enumerate(entry["claims"]):
        _check_claim(f"claims.{number}", claim, None)


def _check_claim(where: str, claim: JsonObject, axes: Mapping[str, set[str]] | None) -> None:
    _expect(claim["kind"] in KINDS, f"{where}.kind", claim["kind"], " or ".join(KINDS))
    _expect((claim["within"] is not None) == (claim["kind"] == "equal"), f"{where}.within", claim["within"], "a margin")
    _expect(bool(claim["terms"]), f"{where}.terms", [], "a term")
    for number, term in enumerate(claim["terms"]):
        _expect(len(term) == 2, f"{where}.terms.{number}", term, "[weight, labels]")
        check_form(f"{where}.terms.{number}.0", term[0], NUMBER)
        check_form(f"{where}.terms.{number}.1", term[1], LABELS)
        _expect(bool(term[0]), f"{where}.terms.{number}.0", term[0], "a weight other than 0")
        if axes is not None and set(term[1]) != {"quantity"}:
            _check_labels(f"{where}.terms.{number}.1", term[1], axes)
    if "answers" in claim:
        expected = {"supported", "refuted", "inconclusive"}
        _expect(set(claim["answers"]) == expected, f"{where}.answers", list(claim["answers"]), ", ".join(expected))


def _check_labels(where: str, labels: Mapping[str, str], axes: Mapping[str, set[str]]) -> None:
    _expect(labels.keys() == axes.keys(), where, list(labels), f"a label of each axis: {', '.join(axes) or 'none'}")
    for name, label in labels.items():
        _expect(label in axes[name], f"{where}.{name}", label, f"a label of axis {name}")


def check_form(where: str, value: object, form: Form) -> None:
    """Raise FormError if a value has another form; `where` is its path in the data."""
    for path, found, expected in _mismatches(where, value, form):
        _expect(False, path.strip("."), found, expected)


def _mismatches(where: str, value: object, form: Form) -> Iterator[tuple[str, object, str]]:
    """Yield the path, the value and the expectation of every part that has another form."""
    if isinstance(form, dict):
        yield from _object_mismatches(where, value, form)
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield where, value, "a list"
        else:
            for number, item in enumerate(value):
                yield from _mismatches(f"{where}.{number}", item, form[0])
    else:
        kinds = form if isinstance(form, tuple) else (form,)
        types = tuple(kind for kind in kinds if kind is not None)
        is_other_bool = isinstance(value, bool) and bool not in kinds
        is_type = isinstance(value, types) and not is_other_bool
        is_type = is_type and (not isinstance(value, int | float) or is_storable(value))
        if not is_type and not (value is None and None in kinds):
            names = [_NAMES[kind] for kind in types]
            yield where, value, " or ".join(dict.fromkeys([*names, *(["null"] if None in kinds else [])]))


def is_storable(value: int | float) -> bool:
    """True for a number that every file and table can hold: finite, and an integer of at most 64 bits."""
    return value in INTEGERS if isinstance(value, int) else math.isfinite(value)


_NAMES = {str: "text", int: "a number", float: "a number", bool: "true or false", list: "a list", dict: "an object"}


def _object_mismatches(where: str, value: object, form: dict[str, Form]) -> Iterator[tuple[str, object, str]]:
    if not isinstance(value, dict):
        yield where, value, "an object"
        return
    for name, own in form.items():
        plain = name.removesuffix("?")
        if name != "*" and plain in value:
            yield from _mismatches(f"{where}.{plain}", value[plain], own)
        elif name not in ("*", f"{plain}?"):
            yield where, sorted(value), f"the field {name}"
    if "*" in form:
        for name in value:
            if name not in form:
                yield from _mismatches(f"{where}.{name}", value[name], form["*"])


def _expect(holds: bool, where: str, value: object, expected: str) -> None:
    if not holds:
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
        raise FormError(f"{where or 'it'} is {ascii(shown)[1:-1]}; expected {expected}")
