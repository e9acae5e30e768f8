"""A training run that is stopped and restored from its folder alone continues bitwise."""

import jax
import numpy as np
import pytest
from states import bits

from flaxformer.checkpoint import Checkpoints, read_config, write_config
from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.model import init
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training, start, train_chunk

RUN = Run(
    model=ModelConfig(
        vocabulary=7, layers=2, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=5), dropout=0.1
    ),
    task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=1),
    optimizer=AdamW(weight_decay=0.1, clip=0.5),
    training=Training(steps=6),
    seed=3,
)


@pytest.mark.long
def test_run_restored_from_its_folder_continues_bitwise(tmp_path):
    chunk, source = jax.jit(train_chunk, static_argnames="steps"), RUN.task.load()
    halfway, _ = chunk(start(RUN), RUN, source, steps=3)
    write_config(tmp_path, RUN)
    kept = Checkpoints(tmp_path)
    kept.save(3, halfway, {"validation_loss": np.float32(0.5)})
    kept.wait()

    run = read_config(tmp_path)
    step, state = Checkpoints(tmp_path).restore(jax.eval_shape(start, run))
    assert (step, int(state.step), run) == (3, 3, RUN)
    ended, losses = chunk(halfway, RUN, source, steps=3)
    assert bits(chunk(state, run, source, steps=3)) == bits((ended, losses))
    assert chunk._cache_size() == 1  # the same compiled program

    weights = {"params": jax.eval_shape(lambda: init(jax.random.key(0), run.model, "scanned"))}
    _, found = Checkpoints(tmp_path).restore(weights, partial=True)
    query = [block.attention.query for block in halfway.params.blocks]
    np.testing.assert_array_equal(found["params"].blocks.attention.query, np.stack(query))
