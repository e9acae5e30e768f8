"""The ablation engine: declare, plan, execute, store, statistics, report."""

from flaxformer.study.claim import Claim
from flaxformer.study.declare import Arm, Axis, Cell, Study
from flaxformer.study.probe import Probe

__all__ = ["Arm", "Axis", "Cell", "Claim", "Probe", "Study"]
