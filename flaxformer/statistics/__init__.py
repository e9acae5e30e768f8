"""Intervals, tests, corrections and fits of scaling laws, with NumPy and SciPy alone."""

from typing import TYPE_CHECKING

from flaxformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from flaxformer.statistics.points_fit import fit_joint_law

__all__ = ["fit_joint_law"]

__getattr__ = lazy_names(__name__, {"points_fit": ("fit_joint_law",)})
