"""Choice of trackers by name: those of the package, and subclasses of `Tracker` in the file of a study or a job."""

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from flaxformer.jobs.trackers.tensorboard import TensorBoard
from flaxformer.jobs.trackers.tracker import Tracker
from flaxformer.jobs.trackers.trackio import Trackio
from flaxformer.jobs.trackers.wandb import WeightsAndBiases
from flaxformer.system import extras
from flaxformer.system.errors import UserError, did_you_mean, quote
from flaxformer.system.user_code.source import module_of

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "trackio": Trackio}
Track: TypeAlias = str | Tracker
"""A tracker by its name, or the tracker itself."""


def trackers_of(track: Sequence[Track], file: Path | None = None) -> dict[str, Callable[[], Tracker]]:
    """Return functions that create the trackers, by name; they are checked, and none is created.

    Args:
      track: names, or objects, whose name is that of their class.
      file: file of the study or the job, whose module may hold subclasses of `Tracker`, its own or imported ones.

    Raises:
      UserError: a name is unknown; a library is not installed, and the message names the extra; a class needs
        arguments; or two trackers have one name.
    """
    known = TRACKERS | trackers_in(file)
    trackers: dict[str, Callable[[], Tracker]] = {}
    for item in track:
        if not isinstance(item, str | Tracker):
            raise UserError(f"track has {quote(item)}; expected a name of a tracker, or an object of a `Tracker` class")
        name = item if isinstance(item, str) else type(item).__name__
        if isinstance(item, Tracker):
            if name in trackers:
                raise UserError(f"track has two trackers of the name '{name}'; expected one of each class")
            trackers[name] = functools.partial(_same, item)
        elif name in known:
            _check(name, known[name])
            trackers[name] = known[name]
        else:
            raise UserError(f"track is '{name}'{did_you_mean(name, list(known))}")
    return trackers


def trackers_in(file: Path | None) -> dict[str, type[Tracker]]:
    """Return the subclasses of `Tracker` that the module of a loaded file has names for."""
    module = None if file is None else module_of(file)
    values = {} if module is None else vars(module)
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, type) and issubclass(value, Tracker) and value is not Tracker
    }


def _check(name: str, kind: type[Tracker]) -> None:
    """Check that the library of a tracker is there, and that its class needs no arguments."""
    if TRACKERS.get(name) is kind:
        extras.library(extras.TRACKERS[name], name, f"track={name}")
        return
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise UserError(
            f"track is '{name}', and {name}() has a {error}; expected a class without arguments, or with defaults"
        ) from None


def _same(tracker: Tracker) -> Tracker:
    return tracker
