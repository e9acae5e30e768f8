"""Logits that a plan counts: those that the compiled step holds, in their precision."""

import jax
import pytest

from flaxformer.components import Attention, Dense, LanguageModel
from flaxformer.config import ModelConfig
from flaxformer.nn.formulations import chunks
from flaxformer.targets.program import logits_bytes
from flaxformer.tasks import Copy
from flaxformer.training import Run, Training, start, train_step

V = 101


def run_of(head, precision):
    model = ModelConfig(
        vocabulary=V, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=7), head=head
    )
    training = Training(precision=precision, micro_batches=1)
    return Run(model=model, task=Copy(symbols=V - 2, length=2, batch_size=8), training=training)


@pytest.mark.every(6, "long")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("precision", "wide", "width"), [("float32", True, 4), ("bfloat16", True, 4), ("bfloat16", False, 2)]
)
def test_logits_of_a_chunk_count_in_their_precision(tied, chunked, precision, wide, width, monkeypatch):
    run = run_of(LanguageModel(tied=tied, wide_logits=wide), precision)
    state, batch = jax.eval_shape(lambda: (start(run), run.task.load().batch(jax.random.key(0), 0)))
    tokens = batch.targets.size
    monkeypatch.setattr(chunks, "LARGE", tokens * V // 4 if chunked else tokens * V)
    program = jax.make_jaxpr(lambda state, batch: train_step(state, run, batch))(state, batch)
    assert logits_bytes(program.jaxpr, run, None) == tokens * V * width // (4 if chunked else 1)
