"""Event files of TensorBoard, in DIR/tensorboard of the output folder.

They are written again at each launch. A trial of a study has the folder DIR/tensorboard/ARM/seed=N. TensorBoard is only
needed to view them.
"""

import json
import time
from collections.abc import Mapping

from flaxformer.jobs.trackers.tracker import TrackedRun, Tracker
from flaxformer.system.extras import library
from flaxformer.system.files import digest_of, make_folder

MODULES = ("event_file_writer", "summary", "proto.event_pb2", "proto.summary_pb2")


class TensorBoard(Tracker):
    """Event files, by tensorboardX."""

    def __init__(self) -> None:
        modules = (library(f"tensorboardX.{name}", "tensorboard", "track=tensorboard") for name in MODULES)
        self._files, self._summary, self._proto, self._numbers = modules

    def start(self, run: TrackedRun) -> None:
        folder = run.folder / "tensorboard"
        if run.study:
            folder = folder / _file_name(run.arm) / f"seed={run.seed}"
        make_folder(folder)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._events = self._files.EventsWriter(str(folder / "events"))
        # A TensorBoard that has read the old files drops their numbers when a session starts.
        session = self._proto.SessionLog(status=self._proto.SessionLog.START)
        self._write(0, session_log=session)
        config = json.dumps(run.config, sort_keys=True, ensure_ascii=False)
        self._write(0, summary=self._summary.text("run", _quote(config)))

    def log(self, step: int, values: Mapping[str, float | str]) -> None:
        summary = self._numbers.Summary()
        for name, value in values.items():
            if isinstance(value, str):
                self._write(step, summary=self._summary.text(name, _quote(value)))
            else:
                summary.value.add(tag=name, simple_value=value)
        if summary.value:
            self._write(step, summary=summary)
        self._events.flush()

    def _write(self, step: int, **content: object) -> None:
        self._events.write_event(self._proto.Event(step=step, wall_time=time.time(), **content))

    def close(self) -> None:
        self._events.close()


def _file_name(arm: str) -> str:
    """An arm's name as a folder's; one that had to be changed ends in a digest, so that it stays unique."""
    safe = (
        "".join(c if c.isalnum() or c in "=,._-" else "_" for c in arm)
        .lstrip(".")
        .encode()[:150]
        .decode(errors="ignore")
    )
    return safe if safe == arm else f"{safe}-{digest_of(arm.encode())}"


def _quote(text: str) -> str:
    """The text as Markdown shows it unchanged: a block that is indented."""
    return "".join(f"    {line}\n" for line in text.split("\n"))
