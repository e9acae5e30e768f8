"""Launchers: train the runs of a study in worker processes on this machine, SLURM jobs or Ray tasks.

A launcher starts the command that it was given several times, `flaxformer run FILE … --share K/N`. The processes
divide the work by their shares and by leases, and each continues from what is in the output folder. A trial is done
when it has a row there; the state of a scheduler is never consulted.
"""

from typing import TYPE_CHECKING

from flaxformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from flaxformer.runner.launchers.launching import LAUNCHERS, launch
    from flaxformer.runner.launchers.options import Options
    from flaxformer.runner.launchers.share import Share

__all__ = ["LAUNCHERS", "Options", "Share", "launch"]

__getattr__ = lazy_names(__name__, {"launching": ("LAUNCHERS", "launch"), "options": ("Options",), "share": ("Share",)})
