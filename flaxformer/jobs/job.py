"""Settings of a training job."""

import dataclasses
from pathlib import Path

from flaxformer.devices.sharding import Devices
from flaxformer.jobs.trackers.choose import Track, trackers_of
from flaxformer.model.layout import Layout
from flaxformer.nn.formulations import FormulationSetting, using
from flaxformer.system.errors import UserError
from flaxformer.system.settings import ProfiledSteps, check_numbers
from flaxformer.system.user_code.changes import OnCodeChange


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of training and saving a run, none of which changes its numbers, except `formulations` the last bits.

    Args:
      output: its folder.
      chunk_steps: steps per call of the compiled function, between which progress is reported and signals are obeyed;
        by default about a second of work (`jobs.peak.steps_per_second`), at most 50; rounded down to a divisor of both
        intervals.
      save_every: steps between two checkpoints; by default as many as between two evaluations.
      keep_last, keep_best: number of the newest and of the best checkpoints that are kept.
      formulations: "auto", or "reference" for the equations alone (`nn.formulations`).
      layout: layers unrolled (fast), scanned (compiles in constant time), or auto (by depth).
      samples: tokens that a model of text generates at each evaluation; 0 for none.
      track: trackers that receive the log besides its file: "tensorboard", "wandb", "trackio", a subclass of `Tracker`
        in `file` by its name, or an object of one.
      profile: steps that are profiled: a number of them, or FIRST:COUNT (`training.profile`).
      devices: the mesh that the job is trained on; None for `default_devices`.
      file: the file that declares the run; its code is part of the run's identity.
      on_code_change: what to do if user code has changed since the folder's checkpoints were made: "refuse" to
        train, "keep" them and resume, or "retrain", which sets them aside and starts again.
      restart: start again from the first step, and move what the folder holds to its superseded/N.
      extend: go on from the newest checkpoint of a shorter run also where its learning rates are not those of this run
        (`jobs.extension`).
    """

    output: Path
    chunk_steps: int | None = None
    save_every: int | None = None
    keep_last: int = 2
    keep_best: int = 1
    formulations: FormulationSetting = "auto"
    layout: Layout = "auto"
    samples: int = 64
    track: tuple[Track, ...] = ()
    profile: str | None = None
    devices: Devices | None = None
    file: Path | None = None
    on_code_change: OnCodeChange = "refuse"
    restart: bool = False
    extend: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, ("chunk_steps", "save_every", "keep_last", "keep_best", "samples"))
        if self.extend and self.restart:
            raise UserError("extend and restart are given; expected one of them")
        trackers_of(self.track, self.file)
        if self.profile is not None:
            ProfiledSteps.parse(self.profile)
        using(self.formulations)
