"""Training one run: the optimizer, the pure step, the chunk of steps, the evaluation."""

from flaxformer.training.optimizer import (
    SGD,
    Adafactor,
    AdamW,
    Adopt,
    Lamb,
    Lion,
    Muon,
    ScheduleFree,
    learning_rate,
)
from flaxformer.training.run import Run, Training
from flaxformer.training.step import State, evaluate, evaluation_params, start, train_chunk, train_step

__all__ = [
    "SGD",
    "Adafactor",
    "AdamW",
    "Adopt",
    "Lamb",
    "Lion",
    "Muon",
    "Run",
    "ScheduleFree",
    "State",
    "Training",
    "evaluate",
    "evaluation_params",
    "learning_rate",
    "start",
    "train_chunk",
    "train_step",
]
