"""Imports point downward: a module imports only from lower layers of the package map, and from its own package."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flaxformer

ROOT = Path(flaxformer.__file__).parent
LAYERS = [
    {"errors", "pytree"},
    {"struct"},
    {"links"},
    {
        "arguments",
        "canonical",
        "files",
        "json_reader",
        "extras",
        "startup",
        "interrupts",
        "garbage",
        "overrides",
        "python_files",
        "wording",
    },
    {"digests"},
    {"user_code"},
    {"params", "nn", "points"},
    {"normal_blocks"},
    {"weight_specs"},
    {"weight_axes", "weight_projection"},
    {"component", "sharding", "distributed"},
    {"parts"},
    {"config"},
    {"model.call", "model.remat", "model.layout", "model.norm", "model.embedding", "model.cache"},
    {"model.blocks", "model.context"},
    {"model.layers", "model.weights", "model.output"},
    {"model.states"},
    {"model.transformer"},
    {"model.interface"},
    {"model.sampling", "model.prompt", "model.prefill", "model.decoding_edits"},
    {"model.decoding", "model.mapped_edits"},
    {"model.beam"},
    {"model"},
    {"data"},
    {"tasks"},
    {"targets.devices", "targets.gpu", "targets.topology"},
    {"training"},
    {"targets"},
    {"checkpoint"},
    {"diagnostics", "interpret"},
    {"interop"},
    {"store"},
    {"study"},
    {"runner"},
    {"report"},
    {"claims", "jobs", "bench", "launchers"},
    {"laws", "templates"},
    {"cli", "templates"},
]
INSIDE = {
    "interpret": [{"interventions", "attribution", "lens"}, {"scores", "patching"}, {"heads"}],
    "parts": [
        {"branch", "cache", "initializers", "inputs", "norms", "parametrizations", "positions", "residuals"},
        {"feed_forward", "mixers", "heads"},
        {"attention", "recurrent"},
    ],
    "config": [{"block", "problems"}, {"model"}, {"recurrent", "published"}],
    "laws": [
        {"law", "programs", "inputs", "embedded", "configs"},
        {"calls"},
        {"subject"},
        {"where"},
        {"sequences", "padding", "token_mixing", "decoding", "edits"},
        {"initial_loss", "weights", "fields", "precision", "equivalence", "execution", "training"}
        | {"updates", "randomness"},
        {"check"},
    ],
    "store": [
        {"rows", "leases", "provenance", "weights", "entry_content"},
        {"records", "checks", "compact", "schema"},
        {"line_forms"},
        {"store", "round_trip"},
        {"columns", "repair"},
        {"declaration_log", "status", "trial_measurements"},
        {"declarations"},
    ],
    "study": [
        {
            "checks",
            "user_functions",
            "claim",
            "paired_tests",
            "corrections",
            "parabola",
            "halving",
            "seeds",
            "finite",
            "law_losses",
        },
        {"divergence", "equal_cost", "scale", "scaling_law"},
        {"statistics", "scaling_claim", "scaling_tests", "joint_law", "metrics"},
        {"trials", "axis", "arm", "seed_bootstrap"},
        {"arms"},
        {"costs"},
        {"claim_context", "combinations", "speedup", "scaling", "scaling_fit"},
        {"declare", "distributions", "joint_fit", "points_fit", "sweep"},
        {"evaluation_data", "load", "kept_trials", "tracing", "scaling_analysis"},
        {"copied_code"},
        {"initial_weights", "identity"},
        {"plan", "probe", "search", "claim_history"},
        {"judging", "program_cost", "memory", "former_results", "declaration_limits"},
        {"explore", "variance"},
        {"analysis"},
        {"compare", "replication", "suggest", "tuned"},
    ],
    "runner": [
        {"execution", "probes", "trial_measurements"},
        {"partial_runs", "schedule", "remaining"},
        {"results", "stages", "kept_weights"},
        {"program"},
        {"execute"},
        {"multihost", "progress"},
        {"launch"},
        {"verification"},
    ],
    "training": [
        {"precision", "loss_terms", "weight_scales", "per_layer", "patterns", "moments", "calls_in_flight"},
        {"schedule"},
        {"optimizer", "adapters", "initial_weights"},
        {"trainable"},
        {"run"},
        {"after_step", "cpu", "offload", "split_loss", "compiling"},
        {"micro_batches"},
        {"memory", "loss"},
        {"device_group", "step"},
        {"evaluation", "evaluation_data", "flops"},
        {"run_functions", "cost"},
        {"compiled_run"},
    ],
    "report": [
        {"numbers", "tex", "colours", "thinning", "table", "events", "texts"},
        {"phrasing", "drawing"},
        {"costs", "directions", "scaling_text"},
        {"cost_tables", "evaluation_tables", "qualifications", "verdicts"},
        {"tables", "claims_figure", "scores_figure"},
        {"curves_figure"},
        {"sweep_figure", "scaling_figure", "joint_law_figure", "lens_figure", "measured"},
        {"run_numbers"},
        {"heads"},
        {"descriptions", "heads_figure", "maps"},
        {"full_tables"},
        {"html", "terminal", "provenance_text"},
        {"figures"},
        {"page"},
        {"write"},
        {"index", "reading", "replication"},
    ],
    "cli": [
        {"arguments", "terminal", "child_process", "mistakes"},
        {"parsing", "remat"},
        {"copied_study"},
        {"declare", "check", "compare", "completion", "fit", "generate", "new", "prepare", "status", "study", "train"},
        {"target_programs"},
        {"target", "bench_suite"},
        {"bench", "claims", "launcher", "measure", "plan", "replicate", "report", "verify"},
        {"run"},
        {"command"},
    ],
}
MODULES = sorted(ROOT.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str, layers: list[set[str]]) -> int:
    """Return the number of the layer of a module, by the longest listed prefix of its name."""
    listed = {name: number for number, names in enumerate(layers) for name in names}
    parts = module.split(".")
    prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next(listed[prefix] for prefix in prefixes if prefix in listed)


def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flaxformer":
            inner = node.module.removeprefix("flaxformer").removeprefix(".")
            for alias in node.names:
                name = f"{inner}.{alias.name}".strip(".")
                is_module = (ROOT / name.replace(".", "/")).with_suffix(".py").exists() or (ROOT / name).is_dir()
                found.add(name if is_module and name else inner)
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("flaxformer")}
    return found - {""}


@pytest.mark.parametrize("path", [path for path in MODULES if module_name(path)], ids=module_name)
def test_imports_point_downward(path):
    own = module_name(path)
    for imported in imports(path):
        same_package = imported.split(".")[0] == own.split(".")[0] and not own.startswith("model")
        below = layer(imported, LAYERS) < layer(own, LAYERS)
        assert below or same_package or layer(imported, LAYERS) == layer(own, LAYERS) == 1, f"{own} imports {imported}"


@pytest.mark.parametrize(
    "path", [path for package in INSIDE for path in sorted((ROOT / package).glob("[a-z]*.py"))], ids=module_name
)
def test_modules_import_from_lower_layers_of_their_package(path):
    package, _, own = module_name(path).partition(".")
    layers = INSIDE[package]
    for imported in imports(path):
        if imported.startswith(f"{package}."):
            other = imported.removeprefix(f"{package}.")
            assert layer(other, layers) < layer(own, layers), f"{own} imports {other}"


def test_imports_are_found():
    assert {"struct", "params", "nn.masks"} <= imports(ROOT / "config" / "model.py")
    assert "study.declare" in imports(ROOT / "cli" / "study.py")


def test_test_files_have_distinct_names():
    """pytest imports them by their names alone."""
    names = [path.name for path in ROOT.parent.glob("tests/*/*.py")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_name(path) or "flaxformer")
def test_files_have_at_most_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def test_nn_does_not_import_configs():
    assert not any(
        "config" in name or "struct" in name for path in (ROOT / "nn").glob("*.py") for name in imports(path)
    )


def test_no_import_starts_jax():
    """The number of devices of a CPU and the processes of a cluster are set after imports, and before JAX starts."""
    names = sorted(name for path in MODULES if (name := module_name(path)) and not name.endswith("__main__"))
    code = (
        "import importlib, sys\n"
        "from jax._src.xla_bridge import backends_are_initialized\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(f'flaxformer.{name}')\n"
        "    if backends_are_initialized():\n"
        "        sys.exit(name)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


def asserts(node: ast.AST) -> bool:
    """True if a syntax tree has an assert statement or calls an asserting function."""
    names = [getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node)]
    known = any(re.match(r"assert_|raises$|equal$|close$|refused$", name) for name in names if isinstance(name, str))
    return known or any(isinstance(n, ast.Assert) for n in ast.walk(node))


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.rglob("test_*.py")), ids=lambda path: path.stem)
def test_every_test_can_fail(path):
    found = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    tests = [function for function in found if function.name.startswith("test_")]
    helpers = {f.name for f in found if not f.name.startswith("test_") and asserts(f)}
    for test in tests:
        called = {getattr(n.func, "id", "") for n in ast.walk(test) if isinstance(n, ast.Call)}
        assert asserts(test) or called & helpers, test.name
