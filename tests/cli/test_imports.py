"""What commands import before they train."""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", ["run", "train"])
def test_the_parts_of_reports_are_imported_after_the_training(command):
    names = f"import flaxformer.cli.{command}, json, sys\nprint(json.dumps([*sys.modules]))"
    loaded = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True).stdout
    packages = ("flaxformer.analysis.", "flaxformer.ledger.", "flaxformer.report.figures", "matplotlib")
    assert [name for name in json.loads(loaded) if name.startswith(packages)] == []
