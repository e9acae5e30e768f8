"""The ablation engine: declare, plan, execute, store, statistics, report."""

from flaxformer.study.declare import Arm, Axis, Cell, Claim, Study

__all__ = ["Arm", "Axis", "Cell", "Claim", "Study"]
