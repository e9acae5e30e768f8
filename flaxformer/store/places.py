"""Names of the files and folders in a study's folder; `store.store` says what each holds."""

from flaxformer.store.line_forms import LINES
from flaxformer.system.links import DEEPEST

RUNGS = "rungs"
"""Folder of the rungs of a halving: DIR/rungs/STEP is a study's folder with the results of all arms at that step."""
SUPERSEDED = "superseded"
"""Folder of the rows that were set aside after a change of code."""
FOLDERS = dict.fromkeys(["groups", "leases", "code", "reads", "figures", "tables", "trackers", SUPERSEDED], DEEPEST)
FOLDERS |= {"weights": 1, "unfinished": 2, RUNGS: 1, "profile": DEEPEST, "tensorboard": 0, "trackio": 1, "wandb": 0}
"""Folders in a study's folder, with the levels in them that `check_links` checks.

A folder of checkpoints is checked when a step of it is read or written; a tracker's files are its own.
"""
REPORT, LIVE = "report.html", "live.html"
"""The report, and the page of `--live`."""
FILES = ["study.json", "declarations.jsonl", "declarations.head", *LINES]
FILES += ["results.parquet", "results.csv", "results.md", "results.tex", REPORT, "replication.html", LIVE]
"""Files in a study's folder."""
