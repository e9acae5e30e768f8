"""Execution of studies and probes: device groups, compiled programs, partial runs, scheduling, stages."""
