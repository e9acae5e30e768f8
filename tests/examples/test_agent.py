"""`examples/agent/`: a scripted agent whose proposals are changes that its ledger takes or refuses by name."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from flaxformer import Ledger
from flaxformer.catalog import import_named
from flaxformer.core.overrides import override
from flaxformer.study.load import load

FOLDER = Path(__file__).parents[2] / "examples" / "agent"


def test_every_proposal_is_a_change_of_the_recipe():
    proposals = runpy.run_path(str(FOLDER / "agent.py"))["PROPOSALS"]
    start = load(FOLDER / "ledger.py", "ledger", Ledger).start
    assert len({change for change, _ in proposals}) == 40
    for change, reason in proposals:
        import_named([change])
        assert override(start, [change]) != start
        assert reason


@pytest.mark.slow
def test_the_agent_keeps_a_planted_improvement_and_is_refused_a_seed(tmp_path):
    command = [sys.executable, str(FOLDER / "agent.py"), "--attempts", "4", "--output", str(tmp_path / "out")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].startswith("kept after ")
    assert lines[3].startswith("refused: seed=7: the candidate changes seed")
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "out" / "ledger.jsonl").open()]
    assert kinds == ["begun", "attempt", "verdict", "attempt", "verdict", "attempt", "verdict", "confirmation"]
