"""A folder of results survives every edit of its study: each command ends well, or refuses and names two ways on.

A state machine edits the file, runs commands in this process, and keeps account of every row that was ever written.
FLAXFORMER_EDITS=500 pytest -m slow tests/cli/test_edited_studies.py tries more sequences.
"""

import contextlib
import dataclasses
import html
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace
from report.test_any_history import without_traces
from study import editions, faults
from study.editions import LABELS, METRIC_NAMES, NAMES, TEXTS, VALUES, EditedAxis, EditedClaim, Edition

import flaxformer
from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.former_results import superseded_rows
from flaxformer.cli import main
from flaxformer.runner import launch
from flaxformer.store import declaration_log, provenance
from flaxformer.store.declaration import QUANTITY
from flaxformer.store.places import RUNGS
from flaxformer.store.store import Store
from flaxformer.study.claim import arm_name
from flaxformer.study.combinations import COMBINATIONS
from flaxformer.study.load import load_study

SEQUENCES, LENGTH = 4, 16
MANY = int(os.environ.get("FLAXFORMER_EDITS", "60"))
WAYS = {
    "another folder": r"--output another folder|another --output|into another folder",
    "the name": r"or name the study",
    "keep": r"--on-code-change keep",
    "retrain": r"--on-code-change retrain",
    "set back": r"set what differs back",
    "the first overrides": r"overrides of the first run",
    "another file": r"--file",
    "run again": r"'?run'? again|flaxformer run|--keep",
    "other seeds": r"--seeds|seeds that it did not use",
}
"""Ways on that a message names."""
ENDS: Counter = Counter()
"""Number of commands that ended with each exit code."""
MEASURE = "def measure(params, run):\n    return {'layers': 1.0 * run.model.layers}\n"
OVERRIDES = st.sampled_from(
    [((), {})] * 4
    + [(("optimizer.beta2=0.99",), {"beta2": 0.99}), (("training.steps=12",), {"steps": 12})]
    + [(("--seeds", "3"), {"seeds": (0, 1, 2)}), (("--seeds", "10:13"), {"seeds": (10, 11, 12)})]
)
FORMS = ("lower", "higher", "equal", "number", "gap")
OPTIONS = ((), ("--full",), ("--retry-failed",), ("--on-error", "stop"))
FOLLOW = st.sampled_from((True, True, True, False))
"""True where an edit also renames labels in the claims."""
DECISIONS = st.sampled_from(("refuse", "refuse", "keep", "retrain"))


class Edits(RuleBasedStateMachine):
    """Edits of a study's file, and commands on its folder."""

    def __repr__(self):
        return "Edits"

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="edits"))
        self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.stack.enter_context(contextlib.chdir(self.folder))
        self.stack.enter_context(without_traces())
        patch = self.stack.enter_context(pytest.MonkeyPatch.context())
        faults.use(patch)
        patch.setattr("flaxformer.runner.program.Program", editions.Program)
        patch.setattr(launch, "provenance", _provenance)
        patch.setattr("flaxformer.store.provenance.code", lambda file: {"source": "s"})
        self.patch = patch
        patch.setattr("flaxformer.system.user_code.search._patches", lambda: [])
        patch.setattr("flaxformer.report.figures.draw", lambda figures, folder: {})
        editions.Program.broken = set()
        self.edition, self.declared, self.former = Edition(), None, []
        self.written = {}
        """Metrics of every row that was ever written, by trial, fingerprint and status."""
        self.versions = {0, -1}
        """Versions of the code whose results the folder may hold."""
        self.confirmatory, self.must_stay = {}, {}
        self.replications = 0
        (self.folder / "measure.py").write_text(MEASURE)

    def teardown(self):
        self.stack.close()

    # --- edits ------------------------------------------------------------------------------------------------

    def edit(self, **changes):
        self.former.append(self.edition)
        self.edition = dataclasses.replace(self.edition, **changes)
        note(f"edit {changes}")

    def edit_axis(self, number, follow, relabel=None, **changes):
        """Change an axis; the claims follow, by their labels, or are left as they are."""
        axes = list(self.edition.axes)
        old = axes[number]
        axes[number] = dataclasses.replace(old, **changes)
        claims = self.edition.claims
        if follow:
            claims = tuple(
                dataclasses.replace(
                    claim,
                    first=_renamed(claim.first, old.name, axes[number].name, relabel or {}),
                    second=_renamed(claim.second, old.name, axes[number].name, relabel or {}),
                )
                for claim in claims
            )
            claims = tuple(claim for claim in claims if _is_possible(claim, axes))
        self.edit(axes=tuple(axes), claims=claims)

    @rule(data=st.data(), label=st.sampled_from(LABELS), follow=FOLLOW)
    def rename_level(self, data, label, follow):
        number, place = self.draw_level(data)
        axis = self.edition.axes[number]
        if label not in axis.labels:
            levels = list(axis.levels)
            old, value = levels[place]
            levels[place] = label, value
            self.edit_axis(number, follow, {old: label}, levels=tuple(levels))

    @rule(data=st.data(), follow=FOLLOW)
    def drop_level(self, data, follow):
        number, place = self.draw_level(data)
        levels = self.edition.axes[number].levels
        self.edit_axis(number, follow, levels=levels[:place] + levels[place + 1 :])

    @rule(data=st.data(), label=st.sampled_from(LABELS))
    def add_level(self, data, label):
        number, _ = self.draw_level(data)
        axis = self.edition.axes[number]
        free = [value for value in VALUES[axis.path] if value not in dict(axis.levels).values()]
        if free and label not in axis.labels:
            self.edit_axis(number, True, levels=(*axis.levels, (label, data.draw(st.sampled_from(free)))))

    @rule(data=st.data())
    def replace_value(self, data):
        """The same label for another value."""
        number, place = self.draw_level(data)
        axis, levels = self.edition.axes[number], list(self.edition.axes[number].levels)
        levels[place] = levels[place][0], data.draw(st.sampled_from(VALUES[axis.path]))
        self.edit_axis(number, True, levels=tuple(levels))

    @rule(data=st.data())
    def permute_labels(self, data):
        """The same labels and values in other pairs, or in another order."""
        number, _ = self.draw_level(data)
        axis = self.edition.axes[number]
        if data.draw(st.booleans()):
            self.edit_axis(number, True, levels=tuple(data.draw(st.permutations(axis.levels))))
        else:
            values = data.draw(st.permutations([value for _, value in axis.levels]))
            self.edit_axis(number, True, levels=tuple(zip(axis.labels, values, strict=True)))

    @rule(data=st.data(), name=st.sampled_from(NAMES), follow=FOLLOW)
    def rename_axis(self, data, name, follow):
        number, _ = self.draw_level(data)
        self.edit_axis(number, follow, name=name)

    @rule(data=st.data())
    def drop_axis(self, data):
        number, _ = self.draw_level(data)
        name = self.edition.axes[number].name
        axes = self.edition.axes[:number] + self.edition.axes[number + 1 :]
        claims = tuple(
            dataclasses.replace(claim, first=_without(claim.first, name), second=_without(claim.second, name))
            for claim in self.edition.claims
        )
        self.edit(axes=axes, claims=tuple(claim for claim in claims if _is_possible(claim, axes)))

    @rule(path=st.sampled_from(sorted(VALUES)), name=st.sampled_from(NAMES), first=st.booleans())
    def add_axis(self, path, name, first):
        axes = self.edition.axes
        if len(axes) < 3 and name not in [axis.name for axis in axes] and path not in [axis.path for axis in axes]:
            axis = EditedAxis(name, path, tuple(zip(LABELS, VALUES[path][:2], strict=False)))
            self.edit(axes=(axis, *axes) if first else (*axes, axis))

    @rule(data=st.data(), text=st.sampled_from(TEXTS), form=st.sampled_from(FORMS))
    def add_claim(self, data, text, form):
        arms = [
            tuple((axis.name, data.draw(st.sampled_from(axis.labels))) for axis in self.edition.axes if axis.levels)
            for _ in range(2)
        ]
        claim = EditedClaim(text, form, *arms)
        claims = [known for known in self.edition.claims if known.text != text]
        if form == "gap" and self.edition.derives is None:
            self.edit(claims=(*claims, claim), derives=0)
        elif form in ("gap", "number") or arms[0] != arms[1]:
            self.edit(claims=(*claims, claim))

    @rule(data=st.data(), change=st.sampled_from(("drop", "by", "text", "swap")))
    def change_claim(self, data, change):
        claims = list(self.edition.claims)
        if not claims:
            return
        place = data.draw(st.integers(0, len(claims) - 1))
        claim = claims.pop(place)
        if change == "by":
            claims.insert(place, dataclasses.replace(claim, by=claim.by + 0.125))
        elif change == "swap":
            claims.insert(place, dataclasses.replace(claim, first=claim.second, second=claim.first))
        elif change == "text":
            claims.insert(place, dataclasses.replace(claim, text=data.draw(st.sampled_from(TEXTS))))
        self.edit(claims=tuple({claim.text: claim for claim in claims}.values()))

    @rule(seeds=st.sampled_from(((0, 1, 2, 3), (0, 1), (0, 1, 2, 3, 4, 5), (3, 2, 1, 0), (10, 11, 12, 13), (2, 3, 10))))
    def change_seeds(self, seeds):
        self.edit(seeds=seeds)

    @rule(
        change=st.sampled_from(
            [{"metric": name, "measures": name == "score"} for name in METRIC_NAMES]
            + [{"combine": name} for name in COMBINATIONS]
            + [{"halves": True}, {"halves": False}, {"keeps": True}, {"keeps": False}]
            + [{"steps": 12}, {"steps": 6}, {"beta2": 0.99}, {"beta2": 0.999}, {"question": "Is it *larger*?"}]
        )
    )
    def change_settings(self, change):
        self.edit(**change)

    @rule(what=st.sampled_from(("version", "derives")))
    def change_code(self, what):
        self.edit(**{what: (getattr(self.edition, what) or 0) + 1})

    @rule(name=st.sampled_from(("other", "Tiny", "tiny")), afresh=st.booleans())
    def rename_study(self, name, afresh):
        """Another study in the folder, or the same one under another name."""
        if afresh:
            self.former.append(self.edition)
            self.edition = Edition(name=name, question="Is this another study?", seeds=(0, 1))
        else:
            self.edit(name=name)

    @precondition(lambda self: self.former)
    @rule(data=st.data())
    def undo(self, data):
        edition = data.draw(st.sampled_from(self.former))
        self.edit(**{field.name: getattr(edition, field.name) for field in dataclasses.fields(edition)})

    @precondition(lambda self: self.declared is not None)
    @rule()
    def go_back(self):
        """Back to what the folder holds."""
        declared = self.declared
        self.edit(**{field.name: getattr(declared, field.name) for field in dataclasses.fields(declared)})

    def draw_level(self, data):
        axes = self.edition.axes
        if not axes or not all(axis.levels for axis in axes):
            self.edition = Edition(name=self.edition.name, version=self.edition.version)
            axes = self.edition.axes
        number = data.draw(st.integers(0, len(axes) - 1))
        return number, data.draw(st.integers(0, len(axes[number].levels) - 1))

    # --- commands ---------------------------------------------------------------------------------------------

    def call(self, *words):
        """Call a command, and check how it ends; returns its exit code, output and message."""
        (self.folder / "study.py").write_text(self.edition.source())
        self.patch.setattr(sys, "argv", ["flaxformer", *words])
        out, err = io.StringIO(), io.StringIO()
        before = _files_of(self.folder / "out")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words])
        note(f"{' '.join(words)}: {code} {err.getvalue()}")
        ENDS[words[0], code] += 1
        text = " ".join(err.getvalue().split())
        assert "Traceback (most" not in out.getvalue() + err.getvalue()
        if code == 2:
            assert text.startswith("error: "), text
            assert text.count("error: ") == 1, text
            assert _files_of(self.folder / "out") == before, "a command that refuses changed the folder"
        self.check_rows()
        return code, out.getvalue(), text

    @rule()
    def run(self):
        self.run_with("refuse", (), ((), {}))

    @rule()
    def run_and_keep(self):
        self.run_with("keep", (), ((), {}))

    @rule(
        decision=DECISIONS,
        options=st.sampled_from(OPTIONS),
        change=OVERRIDES,
    )
    def run_with(self, decision, options, change):
        words, fields = change
        options = (*options, "--on-code-change", decision, *words)
        code, _, text = self.call("run", "study.py", "--output", "out", "--devices", "1", *options)
        if code == 2:
            self.check_refusal(text)
        else:
            self.accept(fields)
            self.check_answer()

    @rule(decision=DECISIONS)
    def declare(self, decision):
        code, _, text = self.call("declare", "study.py", "--output", "out", "--on-code-change", decision)
        if code == 2:
            self.check_refusal(text)
        else:
            self.accept()
            self.check_answer()

    @rule(share=st.sampled_from(("1/2", "2/2", "2/3")))
    def run_a_share(self, share):
        code, _, text = self.call("run", "study.py", "--output", "out", "--devices", "1", "--share", share)
        if code == 2 and "trained in stages" not in text:
            self.check_refusal(text)
        elif code != 2:
            self.accept()
            self.check_answer()

    @rule(data=st.data())
    def break_runs(self, data):
        """Some runs fail from here on, or all are sound again."""
        with contextlib.suppress(Exception):
            (self.folder / "study.py").write_text(self.edition.source())
            trials = {trial.name: trial for trial in load_study(self.folder / "study.py").trials()}
            chosen = [trials[name] for name in data.draw(st.lists(st.sampled_from([*trials]), max_size=2))]
            editions.Program.broken = {(editions.configuration(trial.run), trial.seed) for trial in chosen}

    @precondition(lambda self: self.declared is not None)
    @rule(words=st.sampled_from((["report"], ["report", "--full"], ["status"], ["status", "--json"])))
    def show(self, words):
        code, out, text = self.call(words[0], "out", *words[1:])
        if code == 2:
            assert "holds no finished run yet" in text, text
            assert not analyse(Store(self.folder / "out")).withdrawn, text
            assert not self.has_results(), text
        self.check_answer()
        analysis = analyse(Store(self.folder / "out"))
        assert len(flaxformer.results("out").claims) == len(analysis.claims)
        if words[0] == "report" and code == 0:
            page = (self.folder / "out/report.html").read_text()
            assert all(html.escape(claim.text) in page for claim in analysis.withdrawn)
        if words[-1] == "--json":
            assert json.loads(out)["declared"] == len(analysis.study.trials)

    @precondition(lambda self: self.declared is not None)
    @rule()
    def run_twice(self):
        """The answer on unchanged settings does not change, nor does the declaration."""
        words = "run", "study.py", "--output", "out", "--devices", "1"
        first, _, text = self.call(*words)
        if first == 2:
            return self.check_refusal(text)
        self.accept()
        shown = self.call("report", "out")[1], self.declarations()
        assert self.call(*words)[0] == first
        assert shown == (self.call("report", "out")[1], self.declarations())
        return None

    @precondition(lambda self: self.declared is not None)
    @rule(other=st.booleans())
    def compare(self, other):
        if other and not (self.folder / "other").exists():
            self.call("run", "study.py", "--output", "other", "--devices", "1")
        where = "other" if (self.folder / "other/study.json").exists() else "out"
        for pair in (("out", where), (where, "out")):
            code, _, text = self.call("compare", *pair)
            assert code == 0 or "expected two studies that share labels" in text, text

    @precondition(lambda self: self.declared is not None)
    @rule(trusts=st.booleans(), command=st.sampled_from(("replicate", "verify")))
    def train_again(self, trusts, command):
        source = ["--trust-code"] if trusts else ["--file", "study.py"]
        where = ["--output", f"replication{self.replications % 3}"] if command == "replicate" else ["--trials", "1"]
        self.replications += 1
        code, _, text = self.call(command, "out", *source, *where, "--devices", "1")
        if code == 2:
            self.check_refusal(text)

    @precondition(lambda self: self.declared is not None)
    @rule()
    def measure(self):
        code, _, text = self.call("measure", "out", "measure.py", "--trust-code")
        if code == 2 and "has no kept weights" not in text:
            self.check_refusal(text)

    def declarations(self):
        """The declaration and those of the log, without digests of events."""
        store = Store(self.folder / "out")
        return replace(store.declaration, declaration=""), declaration_log.read(store).declarations

    def has_results(self):
        rows = Store(self.folder / "out").rows()
        return any(trial.trial in rows for trial in Store(self.folder / "out").declaration.trials)

    # --- invariants -------------------------------------------------------------------------------------------

    def check_refusal(self, text):
        """A refusal is about the file, with its line; or it names two ways on."""
        if re.match(r"error: (\S*study\.py, line \d+: |study 'tiny' )", text):
            return
        if "has no finished trial; expected the results of 'flaxformer run'" in text:
            assert not Store(self.folder / "out").rows()
            return
        ways = [name for name, pattern in WAYS.items() if re.search(pattern, text)]
        assert len(ways) >= 2, (ways, text)

    def check_rows(self):
        """No row that was ever written is lost; each is a result, a result of a rung, or set aside and readable."""
        if not (self.folder / "out/study.json").exists():
            return
        store = Store(self.folder / "out")
        rungs = [Store(path) for path in (self.folder / "out" / RUNGS).glob("*")]
        rows = [row for one in (store, *rungs) for row in one.rows().values()]
        rows += [row for one in (store, *rungs) for row in superseded_rows(one)]
        there = {(row.trial, row.fingerprint, row.status): dict(row.metrics) for row in rows}
        results = {key for key in self.written if key[2] != "failed"}  # a failed run may be tried again
        assert results <= there.keys(), results - there.keys()
        assert {key: there[key] for key in results} == {key: self.written[key] for key in results}
        self.written |= there
        assert not store.corrupt_files, store.corrupt_files

    def accept(self, overrides=None):
        """The folder has accepted this edition."""
        declared = Store(self.folder / "out").declaration
        if self.declared is not None:
            assert declared.name == self.declared.name == self.edition.name
        self.declared = dataclasses.replace(self.edition, **(overrides or {}))
        self.versions |= {self.edition.version}
        assert declared.seeds == self.declared.seeds

    def check_answer(self):
        """The rows and the differences of claims are those of the declared configs; withdrawn claims stay visible."""
        store = Store(self.folder / "out")
        analysis = analyse(store)
        assert not analysis.log_faults, analysis.log_faults
        rows = store.rows()
        (self.folder / "declared.py").write_text(self.declared.source())
        study = load_study(self.folder / "declared.py")
        for trial in study.trials():
            row = rows.get(trial.name)
            if row is not None and row.status == "done":
                key = editions.configuration(trial.run)
                allowed = {editions.number(key, trial.seed, "validation_loss", version) for version in self.versions}
                assert row.metrics["validation_loss"] in allowed, trial.name
        self.check_claims(analysis, rows)

    def check_claims(self, analysis, rows):
        scored, metric = ("done", "diverged"), analysis.study.metric
        for claim in analysis.claims:
            if any(QUANTITY in labels for _, labels in claim.terms):
                continue
            expected = []
            for seed in self.declared.seeds:
                held = [rows.get(f"{arm_name(labels)},seed={seed}") for _, labels in claim.terms]
                if all(row is not None and row.status in scored and metric in row.metrics for row in held):
                    weights = [weight for weight, _ in claim.terms]
                    scores = [row.metrics[metric] for row in held]
                    expected.append(sum(w * s for w, s in zip(weights, scores, strict=True)) + claim.constant)
            assert claim.differences == pytest.approx(expected), claim.text
        current = {claim.text for claim in analysis.claims}
        shown = {claim.text for claim in analysis.withdrawn}
        for claim in analysis.claims:
            if claim.declaration.is_confirmatory and claim.differences:
                self.must_stay[claim.text] = Counter(claim.differences)
        for text in self.must_stay.keys() - current:
            assert text in shown, text
            former = [Counter(claim.differences) for claim in analysis.withdrawn if claim.text == text]
            assert any(self.must_stay[text] <= differences for differences in former), text


def _provenance(file=None):
    return faults.provenance(file) | {"file": file and file.name, "command": provenance.command(sys.argv)}


def _renamed(labels, old, new, relabel):
    return tuple((new, relabel.get(label, label)) if name == old else (name, label) for name, label in labels)


def _without(labels, name):
    return tuple(pair for pair in labels if pair[0] != name)


def _is_possible(claim, axes):
    known = {axis.name: axis.labels for axis in axes}
    named = [*claim.first, *claim.second]
    return all(label in known.get(name, ()) for name, label in named) and (
        claim.form in ("gap", "number") or claim.first != claim.second
    )


def _files_of(folder):
    """Content of the declaration, its log, and the rows."""
    names = [folder / "study.json", folder / "declarations.jsonl", *sorted(folder.glob("groups/*"))]
    return {path: path.read_bytes() for path in names if path.exists()}


def _settings(sequences, length, **changes):
    return settings(
        max_examples=sequences,
        stateful_step_count=length,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **changes,
    )


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_a_folder_survives_edits_of_its_study():
    run_state_machine_as_test(Edits, settings=_settings(SEQUENCES, LENGTH, derandomize=True, phases=(Phase.generate,)))
    assert ENDS["run", 0] > 5
    assert ENDS["run", 2] > 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_a_folder_survives_many_edits_of_its_study():
    run_state_machine_as_test(Edits, settings=_settings(MANY, 2 * LENGTH, phases=(Phase.generate,)))
    for command in ("run", "declare", "replicate", "verify", "compare", "report", "status"):
        assert ENDS[command, 0] > 0, command
