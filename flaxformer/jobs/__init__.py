"""Training one run, for hours if need be: stopped when asked, resumed bit for bit, logged line by line."""

from flaxformer.jobs.events import Diverged, Evaluated, JobEvent, Sampled, Saved, Started, StepsTaken
from flaxformer.jobs.samples import text_of
from flaxformer.jobs.train import Job, check, train

__all__ = [
    "Diverged",
    "Evaluated",
    "Job",
    "JobEvent",
    "Sampled",
    "Saved",
    "Started",
    "StepsTaken",
    "check",
    "text_of",
    "train",
]
