"""Judged results of a study, computed from its folder alone."""

from typing import TYPE_CHECKING

from flaxformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from flaxformer.analysis.tuning import tuned_value
    from flaxformer.analysis.variance_study import variance_of_seeds

__all__ = ["tuned_value", "variance_of_seeds"]

__getattr__ = lazy_names(
    __name__,
    {
        "tuning": ("tuned_value",),
        "variance_study": ("variance_of_seeds",),
    },
)
