"""Diagnostics of a model in training: norms, activations, attention, growth with width, the first non-finite number."""

from flaxformer.diagnostics.attention import AttentionStatistics
from flaxformer.diagnostics.coordinate import CoordinateCheck, coordinate_check
from flaxformer.diagnostics.diagnose import Diagnostics, diagnose
from flaxformer.diagnostics.nonfinite import NonFinite, first_nonfinite
from flaxformer.diagnostics.summary import summary

__all__ = [
    "AttentionStatistics",
    "CoordinateCheck",
    "Diagnostics",
    "NonFinite",
    "coordinate_check",
    "diagnose",
    "first_nonfinite",
    "summary",
]
