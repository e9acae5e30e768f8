"""Declaration and plan of studies and probes, and searches; nothing here trains."""

from typing import TYPE_CHECKING

from flaxformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from flaxformer.study.arm import Arm, Trial
    from flaxformer.study.axis import Axis
    from flaxformer.study.claim import Claim
    from flaxformer.study.declare import Study
    from flaxformer.study.distributions import Choice, Integer, LogUniform, Uniform
    from flaxformer.study.equal_cost import EqualCost
    from flaxformer.study.features import leave_one_out
    from flaxformer.study.halving import Halving
    from flaxformer.study.probe import Probe
    from flaxformer.study.scaling import Scaling
    from flaxformer.study.scaling_claim import ScalingClaim
    from flaxformer.study.search import Points, sample_points
    from flaxformer.study.suggest import Search

__all__ = [
    "Arm",
    "Axis",
    "Choice",
    "Claim",
    "EqualCost",
    "Halving",
    "Integer",
    "LogUniform",
    "Points",
    "Probe",
    "Scaling",
    "ScalingClaim",
    "Search",
    "Study",
    "Trial",
    "Uniform",
    "leave_one_out",
    "sample_points",
]

__getattr__ = lazy_names(
    __name__,
    {
        "arm": (
            "Arm",
            "Trial",
        ),
        "axis": ("Axis",),
        "claim": ("Claim",),
        "declare": ("Study",),
        "distributions": (
            "Choice",
            "Integer",
            "LogUniform",
            "Uniform",
        ),
        "equal_cost": ("EqualCost",),
        "halving": ("Halving",),
        "features": ("leave_one_out",),
        "probe": ("Probe",),
        "scaling": ("Scaling",),
        "scaling_claim": ("ScalingClaim",),
        "search": (
            "Points",
            "sample_points",
        ),
        "suggest": ("Search",),
    },
)
