"""Batch size by stage: a step reads one batch, and makes one update of it or several of its parts.

    n = B / size updates per step, update j from the examples j, j + n, j + 2n …

Tokens and operations per step are those of the whole batch at every stage, so that schedules of the learning rate,
costs and comparisons at equal compute read the same in steps.
Sources: Brown et al. 2020, appendix B (a batch that grows); Smith et al. 2018, arXiv:1711.00489 (a batch that grows in
place of a learning rate that falls).
"""

from flaxformer.core.struct import Config, leaf, static


class BatchStage(Config):
    """Batch size from a step on; the learning rate is not scaled with it.

    start: number of steps before the stage. It is a leaf: arms that differ in it share one compiled program.
    size: examples per update, a divisor of `task.batch_size`.
    """

    start: int = leaf(at_least=0, below=2**31)
    size: int = static(at_least=1)
