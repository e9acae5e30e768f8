"""Trackio: a database on this machine, in TRACKIO_DIR, which `trackio show --project flaxformer` shows.

A run is named NAME-ID, with the ID of DIR/trackio/id, so that folders of equal names do not mix; trials of a study are
in trackio's group of the study. A launch deletes the run of an earlier one and writes the whole log, for one run
per job. Where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL names a server, which deletes nothing, each launch is a run there.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping

from flaxformer.jobs.trackers.tracker import PROJECT, TrackedRun, Tracker, folder_id
from flaxformer.system.extras import library

SERVERS = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Variables that send runs elsewhere."""


class Trackio(Tracker):
    """One run, by trackio."""

    def __init__(self) -> None:
        self._trackio = library("trackio", "trackio", "track=trackio")

    def start(self, run: TrackedRun) -> None:
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        name = f"{run.name}-{run.key or folder_id(run.folder / 'trackio')}"
        with _silent():
            if not any(map(os.environ.get, SERVERS)):
                self._delete(project, name)
            self._run = self._trackio.init(
                project=project,
                name=name,
                group=run.study or None,
                config=run.config,
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def _delete(self, project: str, name: str) -> None:
        """Delete the runs of this name, if the project is there."""
        with contextlib.suppress(ValueError):  # there is no such project yet
            for run in self._trackio.Api().runs(project):
                if run.name == name:
                    run.delete()

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        with _silent():
            self._trackio.finish()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep trackio's messages out of standard output, which holds the answer of a command."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
