"""Training jobs: one run with checkpoints, a log, samples, and bitwise resumption."""

from flaxformer.jobs.events import (
    Diverged,
    Evaluated,
    FinalScores,
    JobEvent,
    ProgramsCompiled,
    Sampled,
    Saved,
    Started,
    StepsTaken,
)
from flaxformer.jobs.samples import text_of
from flaxformer.jobs.train import Job, check, train

__all__ = [
    "Diverged",
    "Evaluated",
    "FinalScores",
    "Job",
    "JobEvent",
    "ProgramsCompiled",
    "Sampled",
    "Saved",
    "Started",
    "StepsTaken",
    "check",
    "text_of",
    "train",
]
