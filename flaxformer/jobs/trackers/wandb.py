"""Weights & Biases: one run of the project `flaxformer` (or WANDB_PROJECT) per job or trial.

The run is identified by the text in DIR/wandb/id. Without a key it is offline, so that no account is needed; WANDB_MODE
decides otherwise. A launch that resumes sends W&B only the steps that it does not have: those that are trained again
have the same numbers. Offline, a launch writes the whole run again and removes the files of an earlier launch, so there
is one folder to `wandb sync`. A trial of a study is in W&B's group of the study, with the arm as its job type.
"""

import netrc
import os
import shutil
from collections.abc import Mapping
from urllib.parse import urlsplit

from flaxformer.jobs.trackers.tracker import PROJECT, TrackedRun, Tracker, folder_id
from flaxformer.system.extras import library

SERVER = "https://api.wandb.ai"


class WeightsAndBiases(Tracker):
    """One run, by wandb."""

    def __init__(self) -> None:
        self._wandb = library("wandb", "wandb", "track=wandb")

    def start(self, run: TrackedRun) -> None:
        identifier = folder_id(run.folder / "wandb") + (f"-{run.key}" if run.key else "")
        for old in (run.folder / "wandb").glob(f"offline-run-*-{identifier}"):
            shutil.rmtree(old)
        offline = "WANDB_MODE" not in os.environ and not has_key()
        group = {"group": run.study, "job_type": run.arm} if run.study else {}
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=identifier,
            name=run.name,
            dir=str(run.folder),
            resume="allow",
            config=run.config,
            mode="offline" if offline else None,
            settings=self._wandb.Settings(console="off", silent=offline),
            **group,
        )
        self._first = self._run.step if self._run.resumed else 0

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        if step >= self._first:
            self._run.log({name: self._shown(value) for name, value in values.items()}, step=step)

    def _shown(self, value: float | str) -> object:
        """A number, or a text as W&B shows it unchanged."""
        if not isinstance(value, str):
            return value
        text = value.replace("&", "&amp;").replace("<", "&lt;")
        return self._wandb.Html(f"<pre>{text}</pre>")

    def close(self) -> None:
        self._run.finish()


def has_key() -> bool:
    """True if wandb would find a key for its server without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = urlsplit(os.environ.get("WANDB_BASE_URL", SERVER)).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False
