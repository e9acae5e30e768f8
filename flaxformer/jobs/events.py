"""Events of a job while it runs."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Started:
    """The run begins, or goes on after its newest checkpoint."""

    step: int


@dataclasses.dataclass(frozen=True)
class StepsTaken:
    """Some steps were taken."""

    step: int
    loss: float
    steps: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The evaluation set was read."""

    step: int
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Sampled:
    """The model, as it is evaluated, was let say something."""

    step: int
    prompt: str
    text: str


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint is on its way to the disk."""

    step: int


@dataclasses.dataclass(frozen=True)
class Diverged:
    """The loss or a gradient was not finite at this step: nothing was changed from there on."""

    step: int


JobEvent = Started | StepsTaken | Evaluated | Sampled | Saved | Diverged
