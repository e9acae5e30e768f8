"""Training one run: the optimizer, the pure step, the chunk of steps, the evaluation."""

from flaxformer.core.weight_axes import axes as weight_axes
from flaxformer.training.adapters import Adapter, LoRA, merge
from flaxformer.training.batch_stages import BatchStage
from flaxformer.training.evaluation import evaluate
from flaxformer.training.initial_weights import From, Rename
from flaxformer.training.loss_terms import LossTerm, ZLoss
from flaxformer.training.optimizer import (
    SGD,
    Adafactor,
    AdamW,
    Adopt,
    Lamb,
    Lion,
    Muon,
    ScheduleFree,
)
from flaxformer.training.per_layer import per_layer
from flaxformer.training.run import Run, Seeds, Training
from flaxformer.training.schedule import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    Optimizer,
    Schedule,
    WarmupStableDecay,
    learning_rate,
)
from flaxformer.training.step import TrainState, evaluation_params, start, train_chunk, train_step
from flaxformer.training.trainable import Rate

__all__ = [
    "SGD",
    "Adafactor",
    "AdamW",
    "Adapter",
    "Adopt",
    "BatchStage",
    "Constant",
    "Cosine",
    "From",
    "InverseSqrt",
    "Lamb",
    "Linear",
    "Lion",
    "LoRA",
    "LossTerm",
    "Muon",
    "Optimizer",
    "Rate",
    "Rename",
    "Run",
    "Schedule",
    "ScheduleFree",
    "Seeds",
    "TrainState",
    "Training",
    "WarmupStableDecay",
    "ZLoss",
    "evaluate",
    "evaluation_params",
    "learning_rate",
    "merge",
    "per_layer",
    "start",
    "train_chunk",
    "train_step",
    "weight_axes",
]
