"""Training one run, for hours if need be: stopped when asked, resumed bit for bit, logged line by line."""

from flaxformer.jobs.events import Advanced, Diverged, Evaluated, Event, Sampled, Saved, Started
from flaxformer.jobs.samples import text_of
from flaxformer.jobs.train import Job, check, train

__all__ = [
    "Advanced",
    "Diverged",
    "Evaluated",
    "Event",
    "Job",
    "Sampled",
    "Saved",
    "Started",
    "check",
    "text_of",
    "train",
]
