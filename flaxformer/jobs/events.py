"""Events of a job while it runs."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Started:
    """The run starts, or resumes from its newest checkpoint."""

    step: int


@dataclasses.dataclass(frozen=True)
class ProgramsCompiled:
    """The programs of the run are compiled; `bytes` is what the largest needs on a device, 0 if that is unknown."""

    seconds: float
    bytes: int


@dataclasses.dataclass(frozen=True)
class StepsTaken:
    """Some steps were taken."""

    step: int
    loss: float
    steps: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The run was evaluated."""

    step: int
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class FinalScores:
    """The trained run was evaluated on the test data."""

    step: int
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Sampled:
    """The model generated a text."""

    step: int
    prompt: str
    text: str


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint is being written."""

    step: int


@dataclasses.dataclass(frozen=True)
class Diverged:
    """The loss or a gradient was not finite at this step; the weights are those before it."""

    step: int


JobEvent = Started | ProgramsCompiled | StepsTaken | Evaluated | FinalScores | Sampled | Saved | Diverged
