"""Versions, licence and supported Pythons agree between the package, its metadata, CITATION.cff and CI."""

import re
import tomllib
from pathlib import Path

import flaxformer

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def cited(field):
    """The value of a field on the top level of CITATION.cff."""
    return re.search(rf"^{field}: *(.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == flaxformer.__version__ == cited("version")


def test_the_citation_names_the_licence_and_the_authors_of_the_package():
    assert cited("license") == PROJECT["license"]
    assert re.findall(r"^  - name: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == [
        author["name"] for author in PROJECT["authors"]
    ]


def test_every_declared_python_is_tested():
    declared = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', workflow.split("matrix:")[1].split("steps:")[0]) == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_the_documentation_is_built_strictly_and_its_libraries_are_an_extra():
    assert {re.split(r"[>\[]", one)[0] for one in PROJECT["optional-dependencies"]["docs"]} == {
        "mkdocs-material",
        "mkdocstrings",
    }
    for file in (".ci/run", ".github/workflows/ci.yml"):
        text = (ROOT / file).read_text()
        assert "'.[docs]'" in text
        assert "mkdocs build --strict" in text
