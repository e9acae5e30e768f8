"""Execution of studies: stages, leases, scheduling over device groups, partial runs, and the rows of results.

The calls from the command `flaxformer run FILE` down to the training step pass through these files, in this order:

1. `cli/__init__.py`: handle signals, and return the exit code.
2. `cli/command.py`: parse the command line, and print errors.
3. `cli/run.py`: load the study and its settings from the file.
4. `jobs/progress.py`: show the events of the study.
5. `runner/launch.py`: take leases on trials without results, and write each row of results.
6. `runner/execute.py`: start one worker thread per device group, which trains batches of trials.
7. `runner/program.py`: train a batch of trials together, in chunks, with evaluations and partial saves.
8. `training/compiled_run.py`: compile and call the functions of a run on a device or a mesh.
9. `training/step.py`: the training step, a pure function of state, run and batch.

All other modules are called by one of these and return to it: `events` (what happens, as data), `stages` (the studies
that a study is trained as), `remaining` (trials without results), `multihost` (several processes that train each run
together), `schedule` (the next batch of a device group), `partial_runs` (checkpoints of runs in progress), `results`
(rows), `probes` (measurements without training).
"""
