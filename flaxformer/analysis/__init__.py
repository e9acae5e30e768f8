"""Judged results of a study, computed from its folder alone."""

from flaxformer.analysis.tuned import tuned
from flaxformer.analysis.variance import variance_of_seeds

__all__ = ["tuned", "variance_of_seeds"]
