"""Training one run, for hours if need be: stopped when asked, resumed bit for bit, logged line by line."""

from flaxformer.jobs.train import Advanced, Diverged, Evaluated, Event, Job, Saved, Started, train

__all__ = ["Advanced", "Diverged", "Evaluated", "Event", "Job", "Saved", "Started", "train"]
