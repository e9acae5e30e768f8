"""Trackers: copies of a run's log in TensorBoard, Weights & Biases, trackio, or a class of the user.

A tracker gets the log from its first line at every launch, and so also what an earlier launch, or one that was killed,
has written. It never replaces the log: a tracker that fails is reported once and not used again, and training goes on.
"""

from flaxformer.jobs.trackers.tracker import TrackedRun, Tracker

__all__ = ["TrackedRun", "Tracker"]
