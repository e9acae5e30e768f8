"""Launchers: train the runs of a study in worker processes on this machine, SLURM jobs or Ray tasks.

A launcher gets one file, DIR/launches/ID.json, with the path of the study, the overrides of the command line, and a
list of trials per job. A worker, `python -m flaxformer.launchers.worker FILE INDEX`, reads it, loads the study and
trains its trials into the output folder, as `flaxformer run` does. A trial is done when it has a row in the output
folder; the state of a scheduler is never consulted.
"""

from flaxformer.launchers.division import Options
from flaxformer.launchers.launching import LAUNCHERS, launch
from flaxformer.launchers.payload import Payload

__all__ = ["LAUNCHERS", "Options", "Payload", "launch"]
