"""Table of the rematerialisations of a run, for `plan --remat` and `train --plan --remat`."""

from flaxformer.model.remat import REMATS
from flaxformer.report.table import Table
from flaxformer.study.memory import memory_by_remat
from flaxformer.training import Run


def remat_table(run: Run) -> Table:
    """A row per rematerialisation: what it stores, and the memory of a training step."""
    rows = [
        [name, REMATS[name].stored, f"{found.device / 1e6:,.1f}", f"{found.host / 1e6:,.1f}"]
        for name, found in memory_by_remat(run).items()
    ]
    return Table("", ["training.remat", "stored activations", "MB /run", "MB on the host"], rows, 2)
