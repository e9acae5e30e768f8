"""Training jobs: one run with checkpoints, a log and samples; progress and trackers of training on a console."""

from flaxformer.jobs.folder import check
from flaxformer.jobs.job import Job
from flaxformer.jobs.samples import text_of
from flaxformer.jobs.train import train

__all__ = ["Job", "check", "text_of", "train"]
