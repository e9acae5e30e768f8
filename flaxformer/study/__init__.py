"""Declaration, planning and analysis of studies and probes, and searches; nothing here trains."""

from flaxformer.study.axis import Axis
from flaxformer.study.claim import Claim
from flaxformer.study.declare import Arm, Study, Trial
from flaxformer.study.distributions import Choice, Integer, LogUniform, Uniform
from flaxformer.study.halving import Halving
from flaxformer.study.probe import Probe
from flaxformer.study.search import Points, sampled
from flaxformer.study.suggest import Search
from flaxformer.study.tuned import tuned
from flaxformer.study.variance import variance_of_seeds

__all__ = [
    "Arm",
    "Axis",
    "Choice",
    "Claim",
    "Halving",
    "Integer",
    "LogUniform",
    "Points",
    "Probe",
    "Search",
    "Study",
    "Trial",
    "Uniform",
    "sampled",
    "tuned",
    "variance_of_seeds",
]
