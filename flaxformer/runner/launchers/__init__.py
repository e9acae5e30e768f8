"""Launchers: train the runs of a study in worker processes on this machine, SLURM jobs or Ray tasks.

A launcher starts the command that it was given several times, `flaxformer run FILE … --share K/N`. The processes
divide the work by their shares and by leases, and each continues from what is in the output folder. A trial is done
when it has a row there; the state of a scheduler is never consulted.
"""
