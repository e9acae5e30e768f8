"""Arguments of every command: all that `--help` shows. No module here imports JAX, so that help is shown at once."""

from flaxformer.cli.arguments.runs import Generate, Prepare, Train
from flaxformer.cli.arguments.studies import (
    Compare,
    Declare,
    MeasureTrials,
    Plan,
    Replicate,
    Report,
    RunStudy,
    Status,
    Verify,
)
from flaxformer.cli.arguments.tools import Bench, Catalog, Check, Claims, Completion, Fit, Improve, MeasureNoise, New

COMMANDS: dict[str, type] = {
    "new": New,
    "catalog": Catalog,
    "check": Check,
    "noise": MeasureNoise,
    "plan": Plan,
    "declare": Declare,
    "run": RunStudy,
    "status": Status,
    "report": Report,
    "measure": MeasureTrials,
    "compare": Compare,
    "replicate": Replicate,
    "verify": Verify,
    "improve": Improve,
    "fit": Fit,
    "claims": Claims,
    "bench": Bench,
    "prepare": Prepare,
    "train": Train,
    "generate": Generate,
    "completion": Completion,
}
"""The class of each command's arguments; `main` in the module flaxformer.cli.NAME does its work."""
