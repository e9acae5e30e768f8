"""Judged results of a study, computed from its folder alone."""

from flaxformer.analysis.tuned import tuned
from flaxformer.analysis.variance import variance_of_seeds
from flaxformer.statistics.points_fit import fit_joint_law

__all__ = ["fit_joint_law", "tuned", "variance_of_seeds"]
