"""TensorBoard and Weights & Biases: copies of a run's log, which never replace it.

A tracker gets the log from its first line at every launch, and so also what an earlier launch, or one that was killed,
has written. A tracker that fails is reported once and not used again; training goes on.

tensorboard: event files in DIR/tensorboard, written again at each launch. TensorBoard is only needed to view them.
wandb: one run of the project `flaxformer` (or WANDB_PROJECT), found again by the id in DIR/wandb/id. Without a key it
  is offline, so that no account is needed; WANDB_MODE decides otherwise. A launch that resumes sends W&B only the
  steps that it does not have: those that are trained again have the same numbers. Offline, a launch writes the whole
  run again and removes the files of an earlier launch, so there is one folder to `wandb sync`.

A trial of a study is a run of its own: in DIR/tensorboard/ARM/seed=N, or in W&B's group of the study with the arm as
its job type.
"""

import dataclasses
import json
import netrc
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from flaxformer.core.canonical import canonical_text
from flaxformer.store.job_log import LogLine
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.extras import library
from flaxformer.system.files import digest_of, make_folder, write_atomically
from flaxformer.training import Run

T = TypeVar("T")

PROJECT, SERVER = "flaxformer", "https://api.wandb.ai"


@dataclasses.dataclass(frozen=True)
class TrackedTrial:
    """Names of a study's trial in a tracker; `key` is unique among all trials that a folder ever had."""

    study: str
    arm: str
    seed: int
    key: str


class Backend(Protocol):
    """Receiver of every line of the log, closed at the end. Its exceptions are caught by the caller."""

    def __call__(self, line: LogLine) -> None:
        """Record the line."""

    def close(self) -> None:
        """Write what is left."""


def points(line: LogLine) -> Iterator[tuple[int, dict[str, float]]]:
    """The numbers of a line by the step after which they were taken."""
    if line["kind"] == "steps":
        lists = {name: numbers for name, numbers in line.items() if isinstance(numbers, list)}
        steps = len(lists["loss"])
        for place in range(steps):
            row = {f"training/{name}": numbers[place] for name, numbers in lists.items()}
            if place == steps - 1:
                row["training/steps_per_second"] = steps / max(line["seconds"], 1e-9)
            yield line["step"] - steps + 1 + place, row
    if line["kind"] in ("evaluation", "test"):
        yield line["step"], {f"evaluation/{name}": line[name] for name in line if name not in ("kind", "step")}


class TensorBoard:
    """Event files, by tensorboardX."""

    def __init__(self, folder: Path, config: Run | JsonObject, trial: TrackedTrial | None = None) -> None:
        names = ("event_file_writer", "summary", "proto.event_pb2", "proto.summary_pb2")
        events, self._summary, self._proto, self._numbers = (_library("tensorboard", name) for name in names)
        event_folder = folder / "tensorboard"
        if trial is not None:
            event_folder = event_folder / _file_name(trial.arm) / f"seed={trial.seed}"
        make_folder(event_folder)
        for old in event_folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._events = events.EventsWriter(str(event_folder / "events"))
        # A TensorBoard that has read the old files drops their numbers when a session starts.
        session = self._proto.SessionLog(status=self._proto.SessionLog.START)
        self._write(0, session_log=session)
        self._write(0, summary=self._summary.text("run", _quote(_text(config))))

    def __call__(self, line: LogLine) -> None:
        for step, numbers in points(line):
            summary = self._numbers.Summary()
            for name, value in numbers.items():
                summary.value.add(tag=name, simple_value=value)
            self._write(step, summary=summary)
        if line["kind"] == "sample":
            self._write(line["step"], summary=self._summary.text("sample", _quote(line["prompt"] + line["text"])))
        self._events.flush()

    def _write(self, step: int, **what: object) -> None:
        self._events.write_event(self._proto.Event(step=step, wall_time=time.time(), **what))

    def close(self) -> None:
        """Close the file."""
        self._events.close()


class WeightsAndBiases:
    """One run, by wandb."""

    def __init__(self, folder: Path, config: Run | JsonObject, trial: TrackedTrial | None = None) -> None:
        wandb = _library("wandb")
        wandb_folder = folder / "wandb"
        make_folder(wandb_folder)
        if not (wandb_folder / "id").exists():
            write_atomically(wandb_folder / "id", uuid.uuid4().hex[:12].encode())
        name = (wandb_folder / "id").read_text() + (f"-{trial.key}" if trial else "")
        for old in wandb_folder.glob(f"offline-run-*-{name}"):
            shutil.rmtree(old)
        offline = "WANDB_MODE" not in os.environ and not has_key()
        place = {"group": trial.study, "job_type": trial.arm} if trial else {}
        self._html = wandb.Html
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=name,
            name=f"{trial.arm},seed={trial.seed}" if trial else folder.name,
            dir=str(folder),
            resume="allow",
            config=json.loads(_text(config)),
            mode="offline" if offline else None,
            settings=wandb.Settings(console="off", silent=offline),
            **place,
        )
        self._first = self._run.step if self._run.resumed else 0

    def __call__(self, line: LogLine) -> None:
        for step, numbers in points(line):
            self._write(step, numbers)
        if line["kind"] == "sample":
            text = (line["prompt"] + line["text"]).replace("&", "&amp;").replace("<", "&lt;")
            self._write(line["step"], {"sample": self._html(f"<pre>{text}</pre>")})

    def _write(self, step: int, values: Mapping[str, object]) -> None:
        if step >= self._first:
            self._run.log(values, step=step)

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


BACKENDS: dict[str, Callable[..., Backend]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class Tracker:
    """A backend that may fail without harm: the failure is reported once, and it is not used again.

    Args:
      name: one of `BACKENDS`.
      folder: of the run or the study.
      config: the run, or its canonical form.
      report: called with a message when it fails.
      trial: the names of a study's trial; None for a run of its own.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        config: Run | JsonObject,
        report: Callable[[str], object],
        trial: TrackedTrial | None = None,
    ) -> None:
        self._name, self._report = name, report
        self._backend: Backend | None = None
        arguments = (folder, config) if trial is None else (folder, config, trial)
        self._backend = self._try(lambda: BACKENDS[name](*arguments))

    def __call__(self, line: LogLine) -> None:
        if self._backend is not None:
            backend = self._backend
            self._try(lambda: backend(line))

    def close(self) -> None:
        """Close the backend; it may be called twice."""
        backend, self._backend = self._backend, None
        if backend is not None:
            self._try(backend.close)

    def _try(self, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except Exception as error:
            self._backend = None
            why = (str(error).strip().splitlines() or [""])[0][:300]
            self._report(
                f"{self._name} has failed and is not used any more ({type(error).__name__}: {why}); "
                "training continues, and the output folder has all numbers"
            )
            return None


def check(names: Sequence[str]) -> None:
    """Check that trackers are known and their libraries installed.

    Raises:
      UserError: one is not; the message names the trackers, or the extra to install.
    """
    for name in names:
        if name not in BACKENDS:
            raise UserError(f"track is '{name}'{did_you_mean(name, list(BACKENDS))}")
        _library(name)


def _library(name: str, module: str = "") -> ModuleType:
    return library(MODULES[name] + (module and f".{module}"), name, f"track={name}")


def _text(config: Run | JsonObject) -> str:
    """A config as one line of JSON."""
    return canonical_text(config) if isinstance(config, Run) else json.dumps(config, sort_keys=True, ensure_ascii=False)


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


def has_key() -> bool:
    """True if wandb would find a key for its server without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = urlsplit(os.environ.get("WANDB_BASE_URL", SERVER)).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False
