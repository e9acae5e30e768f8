"""Weights in a folder of checkpoints: of a training job, or of a trial of a study whose weights were kept."""

from pathlib import Path

import jax

from flaxformer.checkpoint.checkpoints import Checkpoints
from flaxformer.model.weights import Transformer
from flaxformer.training.run import Run
from flaxformer.training.step import evaluation_params, start


def read_weights(folder: str | Path, run: Run, step: int | None = None) -> Transformer:
    """Return the weights that evaluations use, such as their running mean; layers are in the run's default layout.

    Args:
      folder: folder of the checkpoints.
      run: the run of the folder, as `read_config` gives it.
      step: a step of the folder; by default the best by validation loss, or the newest where none is the best.

    Raises:
      UserError: the folder has no such step, or no checkpoint that can be read.
    """
    checkpoints = Checkpoints(folder)
    step = checkpoints.best() if step is None else step
    run = run.without_init
    state = jax.eval_shape(start, run)
    if checkpoints.holds_weights_alone(step):
        return checkpoints.restore({"params": jax.eval_shape(evaluation_params, state, run)}, step)[1]["params"]
    return evaluation_params(checkpoints.restore(state, step)[1], run)
