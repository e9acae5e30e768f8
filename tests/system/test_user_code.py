"""Digests of user code: every edit that can change a result is detected, and an edit of what is declared is not one."""

import gc
import itertools
import json
import subprocess
import sys
import textwrap
import types

import pytest
from study.tiny import fill

from flaxformer.analysis.analysis import analyse
from flaxformer.store import records
from flaxformer.store.declarations import declare
from flaxformer.store.store import Store
from flaxformer.study.load import load_study
from flaxformer.study.plan import declaration
from flaxformer.system.errors import UserError
from flaxformer.system.user_code.search import code_digests

HEAD = """
import jax.numpy as jnp
import optax
from flaxformer import Attention, Dense, ModelConfig, Residual
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.core.struct import leaf, static
from flaxformer.study import Axis, Claim, Study
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training
"""
STUDY = """
study = Study(
    name="own",
    question="Does it run?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward={feed_forward}{model}
        ),
        task={task}(symbols=5, length=3, batch_size=2, evaluation_batches=2),
        optimizer={optimizer}(learning_rate=1e-3),
        training=Training(steps=6, evaluate_every=3),
    ),
    axes=[Axis("optimizer.learning_rate", {{"low": 1e-3, "high": 1e-2}}, name="rate")],
    seeds=range(2),{more}
)
"""


def study_text(code="", model="", feed_forward="Dense(d_ff=11)", task="Copy", optimizer="AdamW", more=""):
    chosen = {"model": model, "feed_forward": feed_forward, "task": task, "optimizer": optimizer, "more": more}
    return HEAD + textwrap.dedent(code) + STUDY.format(**chosen)


OPTIMIZER = """
class MyAdamW(AdamW):
    def direction(self):
        return optax.scale_by_adam(b1=self.beta1, b2=0.9)
"""
RESIDUAL = """
class Doubled(Residual):
    def join(self, weights, x, update, context):
        return 2.0 * x + update
"""
COMPONENT = """
from jaxtyping import Array, Float
from flaxformer import FeedForward
from flaxformer.core.params import Parameters, param

def squared(x):
    return 1.0 * x * x

class Maps(Parameters):
    down: Float[Array, "width d_model"] = param(fan_in="width")

class Squared(FeedForward):
    class Weights(Maps):
        up: Float[Array, "d_model width"] = param(std=0.1)

    width: int = static(5)

    def apply(self, weights, x, context):
        return squared(x @ weights.up) @ weights.down
"""
MEASURE = """
def largest(x):
    return 1.0 * jnp.abs(x).max()

def measure(params, run):
    return {"largest": largest(params.embedding.tokens)}
"""
DERIVE = """
def gap(rows):
    return rows["rate=low"]["validation_loss"] - rows["rate=high"]["validation_loss"]

def derive(rows):
    return {"gap": 1.0 * gap(rows)}
"""
TASK = """
def shifted(batch):
    return batch.replace(inputs=(batch.inputs + 1) % 5)

class Shifted(Copy):
    def example(self, key):
        return shifted(super().example(key))
"""
TABLE = """
ACTIVATIONS["mine"] = lambda x: jnp.tanh(x) * 1.0
"""
NESTED = """
class Outer:
    class MyAdamW(AdamW):
        def direction(self):
            return optax.scale_by_adam(b1=0.8)
"""
CLOSURE = """
def make(factor):
    def measure(params, run):
        return {"largest": factor * jnp.abs(params.embedding.tokens).max()}
    return measure
"""
HELPER = (
    "from helper import smooth\n\ndef measure(params, run):\n    return {'size': smooth(params.embedding.tokens)}\n"
)

SMOOTH = "def smooth(x):\n    return 1.0 * x.sum()\n"

# files: name -> text; edit: (file, old, new); and the definition that the message names
CASES = {
    "subclass of an optimizer": (
        {"own.py": study_text(OPTIMIZER, optimizer="MyAdamW")}, ("own.py", "b2=0.9", "b2=0.8"), "own.py: MyAdamW",
    ),
    "subclass of a residual": (
        {"own.py": study_text(RESIDUAL, model=", residual=Doubled()")}, ("own.py", "2.0", "3.0"), "own.py: Doubled",
    ),
    "weights of a component": (
        {"own.py": study_text(COMPONENT, feed_forward="Squared()")}, ("own.py", "std=0.1", "std=0.2"),
        "own.py: Squared",
    ),
    "base of a component's weights": (
        {"own.py": study_text(COMPONENT, feed_forward="Squared()")}, ("own.py", 'fan_in="width"', "std=0.2"),
        "own.py: Maps",
    ),
    "helper called by a component": (
        {"own.py": study_text(COMPONENT, feed_forward="Squared()")}, ("own.py", "1.0 * x", "2.0 * x"),
        "own.py: squared",
    ),
    "entry in a table": (
        {"own.py": study_text(TABLE, feed_forward='Dense(activation="mine")')}, ("own.py", "* 1.0", "* 2.0"),
        "own.py: statements that run on import",
    ),
    "entry in a table through another name": (
        {"own.py": study_text("table = ACTIVATIONS\ntable.setdefault('mine', lambda x: 1.0 * x)")},
        ("own.py", "1.0 * x", "2.0 * x"), "own.py: statements that run on import",
    ),
    "number in a table": (
        {"own.py": study_text("from flaxformer.training import schedule\nschedule.PATIENCE = 3\n")},
        ("own.py", "PATIENCE = 3", "PATIENCE = 4"), "own.py: statements that run on import",
    ),
    "helper called by measure": (
        {"own.py": study_text(MEASURE, more="measure=measure,")}, ("own.py", "1.0 *", "2.0 *"), "own.py: largest",
    ),
    "constant used by measure": (
        {"own.py": study_text("K = 2\n" + HELPER.replace("from helper import smooth", "smooth = lambda x: K * x.sum()"),
                              more="measure=measure,")},
        ("own.py", "K = 2", "K = 3"), "own.py: K",
    ),
    "measure written in place": (
        {"own.py": study_text(more="measure=lambda params, run: {'two': 2.0},")},
        ("own.py", "2.0", "3.0"), "own.py: study",
    ),
    "variable captured by measure": (
        {"own.py": study_text(CLOSURE, more="measure=make(1.0),")}, ("own.py", "make(1.0)", "make(2.0)"),
        "own.py: make.<locals>.measure.factor",
    ),
    "argument of a partial measure": (
        {"own.py": study_text("import functools\ndef f(k, params, run):\n    return {'k': jnp.float32(k)}\n",
                              more="measure=functools.partial(f, 2),")},
        ("own.py", "partial(f, 2)", "partial(f, 3)"), "partial.0",
    ),
    "field of a callable measure": (
        {"own.py": study_text("class M:\n    def __init__(self, k):\n        self.k = k\n"
                              "    def __call__(self, params, run):\n        return {'k': jnp.float32(self.k)}\n",
                              more="measure=M(2),")},
        ("own.py", "M(2)", "M(3)"), "own.py: M.k",
    ),
    "helper called by derive": (
        {"own.py": study_text(DERIVE, more="derive=derive,")},
        ("own.py", 'rows["rate=low"]["validation_loss"] -', 'rows["rate=low"]["validation_loss"] +'), "own.py: gap",
    ),
    "helper called by a task": (
        {"own.py": study_text(TASK, task="Shifted")}, ("own.py", "inputs + 1", "inputs + 2"), "own.py: shifted",
    ),
    "base class": (
        {"own.py": study_text(OPTIMIZER + "class Mine(MyAdamW):\n    pass\n", optimizer="Mine")},
        ("own.py", "b2=0.9", "b2=0.8"), "own.py: MyAdamW",
    ),
    "base class in another module": (
        {"own.py": study_text("from bases import MyAdamW\nclass Mine(MyAdamW):\n    pass\n", optimizer="Mine"),
         "bases.py": HEAD + OPTIMIZER},
        ("bases.py", "b2=0.9", "b2=0.8"), "bases.py: MyAdamW",
    ),
    "function in a module beside the file": (
        {"own.py": study_text(HELPER, more="measure=measure,"), "helper.py": SMOOTH},
        ("helper.py", "1.0", "2.0"), "helper.py: smooth",
    ),
    "function of a module, by attribute": (
        {"own.py": study_text("import helper\ndef measure(params, run):\n    return {'two': helper.two()}\n",
                              more="measure=measure,"),
         "helper.py": "FACTOR = 2\ndef two():\n    return FACTOR * jnp.ones(())\n", },
        ("helper.py", "FACTOR = 2", "FACTOR = 3"), "helper.py: FACTOR",
    ),
    "module imported by a module, in a package": (
        {"own.py": study_text("from parts.inner import two\ndef measure(params, run):\n    return {'two': two()}\n",
                              more="measure=measure,"),
         "parts/__init__.py": "", "parts/inner.py": "from .deep import VALUES\ndef two():\n    return VALUES['two']\n",
         "parts/deep.py": "VALUES = {'two': 2.0}\n"},
        ("parts/deep.py", "2.0", "3.0"), "parts/deep.py: VALUES",
    ),
    "module imported inside a function": (
        {"own.py": study_text("def measure(params, run):\n    from helper import two\n    return {'two': two()}\n",
                              more="measure=measure,"),
         "helper.py": "def two():\n    return 2.0\n"},
        ("helper.py", "2.0", "3.0"), "helper.py: two",
    ),
    "everything imported from a module": (
        {"own.py": study_text("from helper import *\ndef measure(params, run):\n    return {'two': TWO[0] + two()}\n",
                              more="measure=measure,"),
         "helper.py": "TWO = [2.0]\ndef two():\n    return 2.0\n"},
        ("helper.py", "[2.0]", "[3.0]"), "helper.py: TWO",
    ),
    "class of the same name in another module": (
        {"own.py": study_text("from one import MyAdamW\n", optimizer="MyAdamW"),
         "one.py": HEAD + OPTIMIZER, "two.py": HEAD + OPTIMIZER.replace("0.9", "0.8")},
        ("own.py", "from one", "from two"), "optimizer.kind",
    ),
    "class nested in another": (
        {"own.py": study_text(NESTED, optimizer="Outer.MyAdamW")}, ("own.py", "b1=0.8", "b1=0.7"),
        "own.py: Outer",
    ),
    "class made by a function": (
        {"own.py": study_text("def make(b):\n    class Own(AdamW):\n        def direction(self):\n"
                              "            return optax.scale_by_adam(b1=b)\n    return Own\nOwn = make(0.5)\n",
                              optimizer="Own")},
        ("own.py", "make(0.5)", "make(0.6)"), "own.py: make.<locals>.Own.direction.b",
    ),
    "registered by a decorator": (
        {"own.py": study_text("def register(f):\n    ACTIVATIONS[f.__name__] = f\n    return f\n"
                              "@register\ndef mine(x):\n    return 1.0 * x\n",
                              feed_forward='Dense(activation="relu")')},
        ("own.py", "1.0", "2.0"), "own.py: mine",
    ),
    "method replaced": (
        {"own.py": study_text("def direction(self):\n    return optax.scale(1.0)\nAdamW.direction = direction\n")},
        ("own.py", "scale(1.0)", "scale(2.0)"), "own.py: direction",
    ),
    "function of a library by the same name": (
        {"own.py": study_text("from jax.numpy import max as size\n"
                              "def measure(params, run):\n    return {'size': size(params.embedding.tokens)}\n",
                              more="measure=measure,")},
        ("own.py", "import max", "import min"), "own.py: statements that run on import",
    ),
    "config inside measure": (
        {"own.py": study_text(more="measure=lambda params, run: {'two': 1.0 * Run(training=Training(steps=2)).seed},")},
        ("own.py", "Run(training=Training(steps=2))", "Run(training=Training(steps=2), seed=3)"), "own.py: study",
    ),
    "study that a function reads": (
        {"own.py": study_text("def measure(params, run):\n    return {'two': 1.0 * len(study.caveats)}\n",
                              more="measure=measure,")},
        ("own.py", "seeds=", 'caveats=["Small."], seeds='), "own.py: study",
    ),
}  # fmt: skip

UNCHANGED = {
    "comment": ("own.py", "def largest(x):", "def largest(x):  # the largest"),
    "docstring": ("own.py", "def largest(x):", 'def largest(x):\n    """Return the largest."""'),
    "formatting": ("own.py", "jnp.abs(x).max()", "(\n        jnp.abs( x ).max()\n    )"),
    "question": ("own.py", "Does it run?", "Does it still run?"),
    "seeds": ("own.py", "seeds=range(2)", "seeds=range(3)"),
    "claim": ("own.py", "seeds=", 'claims=[Claim("c", lower={"rate": "low"}, than={"rate": "high"})], seeds='),
    "caveat": ("own.py", "seeds=", 'caveats=["Small."], seeds='),
    "level": ("own.py", '"high": 1e-2', '"high": 1e-2, "higher": 3e-2'),
    "remark in a module": ("helper.py", "return", "# a remark\n    return"),
    "tracker": ("own.py", "def largest", "import flaxformer as f\n\nclass A(f.Tracker):\n    pass\n\ndef largest"),
}  # fmt: skip

COARSE = {
    "unused function": ("own.py", "def largest", "def unused():\n    return 1\n\ndef largest"),
    "unused constant": ("own.py", "def largest", "SEEDS = range(8)\n\ndef largest"),
    "tracker that is read": (
        "own.py", "def largest", "from flaxformer import Tracker\n\nclass A(Tracker):\n    pass\n\nB = A\n\ndef largest"
    ),
    "unused component": ("own.py", "def largest", "class Other(AdamW):\n    pass\n\ndef largest"),
    "printing": ("own.py", "def largest", "print('loaded')\n\ndef largest"),
    "unused function of a module": ("helper.py", "def smooth", "def plot():\n    pass\n\ndef smooth"),
}  # fmt: skip
"""Edits that change no result and count all the same: of other code in the modules of the code that a result uses."""


@pytest.fixture(autouse=True)
def isolated(monkeypatch):
    """Undo changes of a study file to tables, classes and imports."""
    from flaxformer.nn.activations import ACTIVATIONS
    from flaxformer.training import AdamW, schedule

    monkeypatch.setattr(sys, "path", list(sys.path))
    before, direction, names = dict(ACTIVATIONS), AdamW.direction, set(sys.modules)
    yield
    ACTIVATIONS.clear()
    ACTIVATIONS.update(before)
    AdamW.direction = direction
    if hasattr(schedule, "PATIENCE"):
        del schedule.PATIENCE
    for name in set(sys.modules) - names:
        if "@" in name or name.partition(".")[0] in ("helper", "bases", "one", "two", "parts"):
            del sys.modules[name]


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("jnp.ones", "__import__('jax').numpy.ones") if "ones" in text else text)


def edit(folder, name, old, new):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def declared(folder, output, **how):
    store = Store(output)
    with store.locked():
        return declare(store, declaration(load_study(folder / "own.py")), **how)


def filled(folder, output):
    study = load_study(folder / "own.py")
    return fill(output, study, lambda trial: 1.0 + trial.seed)


@pytest.mark.long
@pytest.mark.every(9)
@pytest.mark.parametrize("case", CASES)
def test_changed_definition_is_named_in_the_error_and_results_can_be_kept(tmp_path, case):
    files, change, name = CASES[case]
    write(tmp_path, files)
    filled(tmp_path, tmp_path / "out")
    if "derive" in case:
        by = Store(tmp_path / "out").declaration.measured_by
        seeds = [{"measured_by": by, "seed": s, "seconds": 0.0, "values": {"gap": 0.0}} for s in range(2)]
        Store(tmp_path / "out").replace_measurements(seeds, by)
    declared(tmp_path, tmp_path / "out")  # the same code again
    edit(tmp_path, *change)
    with pytest.raises(UserError) as refused:
        declared(tmp_path, tmp_path / "out")
    assert name in str(refused.value), refused.value
    if "another recipe" in str(refused.value):
        return
    assert "keep" in str(refused.value)
    assert "retrain" in str(refused.value)
    before = Store(tmp_path / "out").rows()
    kept = declared(tmp_path, tmp_path / "out", on_code_change="keep")
    assert Store(tmp_path / "out").rows() == before
    assert [one.decision for one in kept.code_changes] == ["keep"]
    declared(tmp_path, tmp_path / "out")
    results = analyse(Store(tmp_path / "out")).results
    assert (results.foreign, len(results.rows)) == ([], len(before))
    assert any("had changed" in limit for limit in analyse(Store(tmp_path / "out")).limits)


@pytest.mark.long
@pytest.mark.every(5)
@pytest.mark.parametrize("case", UNCHANGED)
def test_edits_without_effect_on_results_retrain_nothing(tmp_path, case):
    measure = MEASURE.replace("1.0 *", "smooth(x) *") + "from helper import smooth\n"
    write(tmp_path, {"own.py": study_text(measure, more="measure=measure,"), "helper.py": SMOOTH})
    filled(tmp_path, tmp_path / "out")
    before = declared(tmp_path, tmp_path / "out")
    edit(tmp_path, *UNCHANGED[case])
    after = declared(tmp_path, tmp_path / "out")
    assert before.recipes.items() <= after.recipes.items()
    fingerprints = after.fingerprints
    assert before.fingerprints.items() <= fingerprints.items()


@pytest.mark.every(2, "long")
@pytest.mark.every(3)
@pytest.mark.parametrize("case", COARSE)
def test_edits_of_unused_code_are_refused_where_user_code_is_used(tmp_path, case):
    measure = MEASURE.replace("1.0 *", "smooth(x) *") + "from helper import smooth\n"
    for name, more in (("used", "measure=measure,"), ("not_used", "")):
        folder = tmp_path / name
        write(folder, {"own.py": study_text(measure, more=more), "helper.py": SMOOTH})
        filled(folder, folder / "out")
        edit(folder, *COARSE[case])
    declared(folder, folder / "out")  # only the package's code trains these arms
    with pytest.raises(UserError, match="4 results of 2 arms"):
        declared(tmp_path / "used", tmp_path / "used/out")


@pytest.mark.long
def test_only_arms_that_use_the_code_are_refused_and_retrained(tmp_path):
    files, change, _ = CASES["subclass of an optimizer"]
    text = files["own.py"].replace("optimizer=MyAdamW(learning_rate=1e-3)", "optimizer=AdamW(learning_rate=1e-3)")
    text = text.replace('Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate")',
                        'Axis("optimizer", {"adam": AdamW(), "own": MyAdamW()})')  # fmt: skip
    write(tmp_path, {"own.py": text})
    filled(tmp_path, tmp_path / "out")
    edit(tmp_path, *change)
    with pytest.raises(UserError, match="2 results of 1 arm"):
        declared(tmp_path, tmp_path / "out")
    declared(tmp_path, tmp_path / "out", on_code_change="retrain")
    store = Store(tmp_path / "out")
    assert sorted(store.rows()) == ["optimizer=adam,seed=0", "optimizer=adam,seed=1"]
    aside = records.read_table(tmp_path / "out/superseded/1.parquet")
    assert [row["trial"] for row in aside] == ["optimizer=own,seed=0", "optimizer=own,seed=1"]
    declared(tmp_path, tmp_path / "out")
    assert len(store.rows()) == 2


def test_values_that_a_program_sets_count_as_its_text_does(tmp_path):
    """The texts are equal; the value of a global, of a default and of a captured variable differ."""
    code = """
    K = 1.0
    def make(factor):
        def measure(params, run, more=K):
            return {"x": K * factor}
        return measure
    """
    (tmp_path / "own.py").write_text(study_text(code, more="measure=make(1.0),"))
    module = sys.modules[load_study(tmp_path / "own.py").measure.__module__]
    first = code_digests([module.make(1.0)], tmp_path / "own.py")
    assert code_digests([module.make(1.0)], tmp_path / "own.py") == first
    assert code_digests([module.make(2.0)], tmp_path / "own.py") != first
    measure = module.make(1.0)
    measure.__defaults__ = (2.0,)
    assert code_digests([measure], tmp_path / "own.py") != first
    module.K = 3.0
    assert code_digests([module.make(1.0)], tmp_path / "own.py") != first


CELL = """
K = 1.0
def helper(x):
    return 2.0 * x
class Base:
    factor = 3.0
    def of(self, x):
        return helper(x) * self.factor
class Own(Base):
    def __init__(self, shift):
        self.shift = shift
    def __call__(self, params, run):
        return {"x": self.of(K) + self.shift}
"""


def in_notebook(text, shift=1.0):
    """Return the digests of an object that a cell of a notebook defines, in a process whose program is no file."""
    program = f"""
import linecache, sys
from flaxformer.system.user_code import code_digests
vars(sys.modules["__main__"]).pop("__file__", None)
text = {text!r}
linecache.cache["<cell>"] = (len(text), None, text.splitlines(True), "<cell>")
exec(compile(text, "<cell>", "exec"), globals())
print(sorted(code_digests([Own({shift})]).items()))
"""
    file = "import sys; exec(sys.stdin.read(), globals())"
    done = subprocess.run([sys.executable, "-c", file], input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_code_of_a_notebook_counts():
    first = in_notebook(CELL)
    assert in_notebook(CELL.replace("    return 2.0", '    """Twice x."""  # a remark\n    return 2.0')) == first
    changes = [("K = 1.0", "K = 1.5"), ("2.0 *", "2.5 *"), ("factor = 3.0", "factor = 4.0"), ("+ self", "- self")]
    assert len({in_notebook(CELL, shift=2.0), first, *(in_notebook(CELL.replace(*edit)) for edit in changes)}) == 6


def interactive(text, name):
    """A class that a program without a file or a source text defines, as a pipe or `python -c` does."""
    names = {"__name__": "__main__"}
    exec(compile(text, "<stdin>", "exec"), names)
    return names[name]


def test_code_without_a_source_text_counts_by_its_compiled_form(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    first = code_digests([interactive(CELL, "Own")])
    assert any("Own.__call__" in name for name in first)
    assert code_digests([interactive(CELL.replace("\n    return", "\n    # a remark\n    return"), "Own")]) == first
    for edit in [("2.0 *", "2.5 *"), ("factor = 3.0", "factor = 4.0"), ("+ self", "- self"), ("(K)", "(K + 0)")]:
        assert code_digests([interactive(CELL.replace(*edit), "Own")]) != first, edit


def test_code_may_change_while_there_are_no_results(tmp_path):
    files, change, _ = CASES["subclass of an optimizer"]
    write(tmp_path, files)
    declared(tmp_path, tmp_path / "out")
    edit(tmp_path, *change)
    declared(tmp_path, tmp_path / "out")
    assert "code_changes" not in json.loads((tmp_path / "out/study.json").read_text())


def test_unknown_decision_is_refused(tmp_path):
    write(tmp_path, CASES["subclass of an optimizer"][0])
    with pytest.raises(UserError, match="on_code_change is 'kep'; did you mean 'keep'"):
        declared(tmp_path, tmp_path / "out", on_code_change="kep")


def test_search_allows_imports_in_other_threads(tmp_path, monkeypatch):
    """The search runs in a thread per device; here, garbage collection triggers imports during the search."""
    write(tmp_path, CASES["subclass of an optimizer"][0])
    roots = [type(load_study(tmp_path / "own.py").baseline.optimizer)]
    expected, names = code_digests(roots), itertools.count()
    monkeypatch.setattr(sys, "modules", sys.modules | {f"large_{i}": types for i in range(5000)})

    def import_module(phase, details):
        sys.modules[f"imported_{next(names)}"] = types

    threshold = gc.get_threshold()
    gc.callbacks.append(import_module)
    gc.set_threshold(10)
    try:
        assert code_digests(roots) == expected
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(import_module)
    assert next(names) > 100
