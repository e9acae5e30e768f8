"""Declare studies and probes, search, plan and judge; nothing here trains."""

from flaxformer.study.claim import Claim
from flaxformer.study.declare import Arm, Axis, Study, Trial
from flaxformer.study.halving import Halving
from flaxformer.study.probe import Probe
from flaxformer.study.search import Choice, Integer, LogUniform, Points, Uniform, sampled
from flaxformer.study.suggest import Search
from flaxformer.study.tuned import tuned

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
]
