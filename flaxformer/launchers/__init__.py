"""Launchers, which train the runs of a study outside this process: worker processes here, SLURM jobs, Ray tasks.

A launcher gets one file, DIR/launches/ID.json, which holds names and numbers alone: the study's file, what the command
line changed, and a list of trials for each job. A worker, `python -m flaxformer.launchers.worker FILE INDEX`, reads it,
loads the study and trains its trials into the study's folder, as `flaxformer run` does. What is done is what has a row
there: no scheduler is asked.
"""

from flaxformer.launchers.division import Options
from flaxformer.launchers.launching import LAUNCHERS, launch
from flaxformer.launchers.payload import Payload

__all__ = ["LAUNCHERS", "Options", "Payload", "launch"]
