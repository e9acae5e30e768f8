"""Intervals, tests, corrections and fits of scaling laws, with NumPy and SciPy alone."""

from flaxformer.statistics.points_fit import fit_joint_law

__all__ = ["fit_joint_law"]
