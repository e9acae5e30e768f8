"""Training one run: the optimizer, the pure step, the chunk of steps, the evaluation."""

from flaxformer.training.optimizer import AdamW, learning_rate
from flaxformer.training.run import Run, Training
from flaxformer.training.step import State, evaluate, start, train_chunk, train_step

__all__ = ["AdamW", "Run", "State", "Training", "evaluate", "learning_rate", "start", "train_chunk", "train_step"]
