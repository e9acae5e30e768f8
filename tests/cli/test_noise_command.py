"""`flaxformer noise`: the metric of the file, also one that `measure` returns."""

import json

import numpy as np
import pytest

from flaxformer.cli import main
from flaxformer.store.store import Store

FILE = """
from flaxformer import Ledger
from study.tiny import *

def measure(params, run):
    return {"moved": params.embedding.tokens.std()}

study = tiny(measure=measure, metric="moved", metric_unit="of weight", goal="higher", claims=())
"""
LEDGER = FILE + 'ledger = Ledger(name="tiny", start=BASELINE, effect=1, measure=measure, metric="moved")\ndel study\n'


@pytest.mark.long
@pytest.mark.parametrize("text", [FILE, LEDGER], ids=["study", "ledger"])
def test_the_noise_of_a_measured_number_is_that_of_its_rows(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(text)
    assert main(["noise", "tiny.py", "--seeds", "4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    rows = Store(tmp_path / "runs" / "tiny-noise").rows()
    together = [row["moved"] for name, row in sorted(rows.items()) if name.startswith("varied=together")]
    changed = [row["moved"] for name, row in sorted(rows.items()) if name.startswith("varied=small change")]
    assert (data["metric"], data["n"]) == ("moved", 4)
    assert data["sd"] == pytest.approx(np.std(together, ddof=1), rel=1e-9)
    assert data["paired_sd"] == pytest.approx(np.std(np.subtract(changed, together), ddof=1), rel=1e-9)
