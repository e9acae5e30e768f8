"""The wheel, built from the source distribution, works in an empty folder without the repository."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from flaxformer.bench.choose import find
from flaxformer.claims.case import find_cases
from flaxformer.system.python_files import find_experiment
from flaxformer.system.user_code.source import is_user_file

ROOT = Path(__file__).parents[1]
SOURCES = ("flaxformer", "experiments", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def build(kind, folder, output):
    """Build a distribution of a source folder, and return its file."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(output)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    return next(output.glob("*.whl" if kind == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Python of an environment that has the wheel, and by a path file all other packages of this environment."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    source, dist, environment = folder / "source", folder / "dist", folder / "environment"
    dist.mkdir()
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    shutil.unpack_archive(build("sdist", source, dist), folder / "unpacked")
    wheel = build("wheel", next((folder / "unpacked").iterdir()), dist)
    venv.create(environment)
    packages = next(environment.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Path files in a folder that a path file adds are not read: an editable install stays invisible.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin" / "python"


@pytest.mark.slow
def test_claims_the_default_study_and_benchmarks_are_in_the_wheel(python, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words):
        done = subprocess.run([python, *words], cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def flaxformer(*words):
        return run("-m", "flaxformer.cli", *words)

    place = Path(run("-c", "import flaxformer; print(flaxformer.__file__)").strip())
    assert place.is_relative_to(python.parents[1])
    assert "96 runs in 2 compiled programs" in " ".join(flaxformer("plan", "experiments/norm_and_scale.py").split())
    flaxformer("new", "study", "mine", "--like", "experiments/norm_and_scale.py")
    for kind in ("study", "run", "component", "task"):
        flaxformer("new", kind, f"own_{kind}")
    assert {path.name for path in tmp_path.glob("*.py")} == {
        "mine.py",
        "own_study.py",
        "own_run.py",
        "own_component.py",
        "own_task.py",
    }
    names = sorted(path.stem for path in (ROOT / "experiments" / "claims").glob("[0-9]*.py"))
    found = run("-c", "from pathlib import Path; from flaxformer.claims.case import find_cases as f; "
                      "print(*[case.name for case in f(Path('experiments/claims'))])")  # fmt: skip
    assert found.split() == names
    flaxformer("claims", "--quick", "dot_products")
    assert (tmp_path / "runs" / "claims-quick" / "index.html").is_file()
    code = json.loads((tmp_path / "runs/claims-quick/01_dot_products/variance/study.json").read_text())
    assert "01_dot_products.py: measure" in str(code)  # a file of the wheel has an identity, as one of the user's has
    flaxformer("bench", "folders", "--quick", "--only", "help")
    assert list(tmp_path.glob("runs/bench/folders/*.svg"))


def test_experiments_are_found_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_experiment(Path("experiments/norm_and_scale.py")) == ROOT / "experiments" / "norm_and_scale.py"
    assert [case.number for case in find_cases(Path("experiments/claims"), ["1", "heads"])] == [1, 20]
    assert "training" in find(Path("experiments/benchmarks"))


def test_files_of_the_working_folder_come_before_those_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = Path("experiments/norm_and_scale.py")
    own.parent.mkdir()
    own.write_text("")
    assert find_experiment(own) == own
    assert find_experiment(Path("experiments/other.py")) == Path("experiments/other.py")
    assert find_experiment(Path("norm_and_scale.py")) == Path("norm_and_scale.py")


def test_packages_of_other_environments_are_not_user_code(tmp_path):
    for name, expected in (("site-packages/other.py", False), ("dist-packages/other.py", False), ("own.py", True)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert is_user_file(str(tmp_path / name)) == expected
