"""TensorBoard and Weights & Biases: copies of a run's log for those who like to look there, never its source of truth.

A tracker is told the log from its first line at every launch, and so has what an earlier launch, or a kill, kept from
it. One that fails is reported once and told no more; training goes on.

tensorboard: event files in DIR/tensorboard, written anew at each launch. Needs no TensorBoard but to look at them.
wandb: one run of the project `flaxformer` (or WANDB_PROJECT), found again by the id in DIR/wandb/id. It is offline
  without a key, so that no account is needed; WANDB_MODE decides otherwise. A launch that goes on tells W&B what it
  does not have: the steps that are taken a second time have the same numbers. Offline, a launch writes the whole run
  anew and removes what an earlier one left, so there is one folder to `wandb sync`.
"""

import netrc
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from flaxformer.extras import library
from flaxformer.files import write_atomically
from flaxformer.jobs.log import LogLine
from flaxformer.struct import UserError, canonical, canonical_text, did_you_mean
from flaxformer.training import Run

PROJECT, SERVER = "flaxformer", "https://api.wandb.ai"


class Backend(Protocol):
    """Receiver of every line of the log, closed at the end. Its exceptions are caught by the caller."""

    def __call__(self, line: LogLine) -> None:
        """Show the line."""

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
    if line["kind"] == "evaluation":
        yield line["step"], {f"evaluation/{name}": line[name] for name in line if name not in ("kind", "step")}


class TensorBoard:
    """Event files, by tensorboardX."""

    def __init__(self, folder: Path, run: Run) -> None:
        names = ("event_file_writer", "summary", "proto.event_pb2", "proto.summary_pb2")
        events, self._summary, self._proto, self._numbers = (_library("tensorboard", name) for name in names)
        own = folder / "tensorboard"
        own.mkdir(exist_ok=True)
        for old in own.glob("events.out.tfevents.*"):
            old.unlink()
        self._events = events.EventsWriter(str(own / "events"))
        # A TensorBoard that has read the old files drops what they said.
        session = self._proto.SessionLog(status=self._proto.SessionLog.START)
        self._write(0, session_log=session)
        self._write(0, summary=self._summary.text("run", _quoted(canonical_text(run))))

    def __call__(self, line: LogLine) -> None:
        for step, numbers in points(line):
            summary = self._numbers.Summary()
            for name, value in numbers.items():
                summary.value.add(tag=name, simple_value=value)
            self._write(step, summary=summary)
        if line["kind"] == "sample":
            self._write(line["step"], summary=self._summary.text("sample", _quoted(line["prompt"] + line["text"])))
        self._events.flush()

    def _write(self, step: int, **what: Any) -> None:
        self._events.write_event(self._proto.Event(step=step, wall_time=time.time(), **what))

    def close(self) -> None:
        """Close the file."""
        self._events.close()


class WeightsAndBiases:
    """One run, by wandb."""

    def __init__(self, folder: Path, run: Run) -> None:
        wandb = _library("wandb")
        own = folder / "wandb"
        own.mkdir(exist_ok=True)
        if not (own / "id").exists():
            write_atomically(own / "id", uuid.uuid4().hex[:12].encode())
        name = (own / "id").read_text()
        for old in own.glob(f"offline-run-*-{name}"):
            shutil.rmtree(old)
        offline = "WANDB_MODE" not in os.environ and not _has_key()
        self._html = wandb.Html
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=name,
            name=folder.name,
            dir=str(folder),
            resume="allow",
            config=canonical(run),
            mode="offline" if offline else None,
            settings=wandb.Settings(console="off", silent=offline),
        )
        self._first = self._run.step if self._run.resumed else 0

    def __call__(self, line: LogLine) -> None:
        for step, numbers in points(line):
            self._write(step, numbers)
        if line["kind"] == "sample":
            text = (line["prompt"] + line["text"]).replace("&", "&amp;").replace("<", "&lt;")
            self._write(line["step"], {"sample": self._html(f"<pre>{text}</pre>")})

    def _write(self, step: int, values: dict[str, Any]) -> None:
        if step >= self._first:
            self._run.log(values, step=step)

    def close(self) -> None:
        """Hand over what is left."""
        self._run.finish()


BACKENDS: dict[str, Callable[[Path, Run], Backend]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class Tracker:
    """A backend that may fail without harm: it is told nothing more, and why is reported once."""

    def __init__(self, name: str, folder: Path, run: Run, report: Callable[[str], object]) -> None:
        self._name, self._report = name, report
        self._backend: Backend | None = None
        self._backend = self._try(lambda: BACKENDS[name](folder, run))

    def __call__(self, line: LogLine) -> None:
        if self._backend is not None:
            backend = self._backend
            self._try(lambda: backend(line))

    def close(self) -> None:
        """End it; it may be called twice."""
        backend, self._backend = self._backend, None
        if backend is not None:
            self._try(backend.close)

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            self._backend = None
            why = (str(error).strip().splitlines() or [""])[0][:300]
            self._report(
                f"{self._name} is told no more ({type(error).__name__}: {why}); "
                "training goes on, and log.jsonl has everything"
            )


def check(names: Sequence[str]) -> None:
    """See that trackers are known and their libraries installed.

    Raises:
      UserError: one is not; the message names what there is, or the extra to install.
    """
    for name in names:
        if name not in BACKENDS:
            raise UserError(f"track is '{name}'{did_you_mean(name, list(BACKENDS))}")
        _library(name)


def _library(name: str, part: str = "") -> Any:
    return library(MODULES[name] + (part and f".{part}"), name, f"track={name}")


def _quoted(text: str) -> str:
    """The text as Markdown shows it unchanged: a block that is indented."""
    return "".join(f"    {line}\n" for line in text.split("\n"))


def _has_key() -> bool:
    """True if wandb would find a key for its server without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = urlsplit(os.environ.get("WANDB_BASE_URL", SERVER)).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False
