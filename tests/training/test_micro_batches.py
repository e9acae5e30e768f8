"""On a CPU, a batch is divided into micro-batches whose activations fit the caches; the numbers stay the same."""

import jax
import numpy as np
import pytest

from flaxformer.catalog.mixture_of_experts import MixtureOfExperts
from flaxformer.catalog.switch_routing import SwitchRouting
from flaxformer.components import GRU, Attention, BatchNorm, Dense
from flaxformer.config import Block, ModelConfig, recurrent_model
from flaxformer.nn.formulations import compiling_for
from flaxformer.tasks import Copy, StandardLibrary
from flaxformer.training import Run, Training, cpu, start, train_chunk
from flaxformer.training.cpu import activation_bytes
from flaxformer.training.micro_batches import micro_batches

LARGE = Run(
    model=ModelConfig(layers=4, d_model=128, attention=Attention(heads=4)),
    task=StandardLibrary(length=128, batch_size=32),
    seed=1,
)


def changed(**fields):
    return LARGE.replace(**fields)


@pytest.mark.parametrize(
    ("run", "parts"),
    [
        (LARGE, 8),
        (changed(training=Training(micro_batches=2)), 2),
        (changed(training=Training(micro_batches=1)), 1),
        (changed(model=LARGE.model.replace(dropout=0.1)), 8),
        (changed(model=LARGE.model.replace(norm_kind=BatchNorm())), 1),
        (changed(task=StandardLibrary(length=128, batch_size=33)), 1),
        (changed(task=StandardLibrary(length=128, batch_size=34)), 2),
        (changed(task=StandardLibrary(length=128, batch_size=8)), 2),
        (changed(model=LARGE.model.with_encoder(layers=9), task=Copy(batch_size=64, length=99, form="paired")), 16),
        (changed(model=recurrent_model(GRU(), layers=40, d_model=256)), 8),
        (changed(model=LARGE.model.replace(pattern=(Block(), Block(feed_forward=None)))), 8),
        (changed(model=LARGE.model.replace(feed_forward=Dense(d_ff=1), pattern=(Block(feed_forward=Dense()),))), 8),
        (changed(model=LARGE.model.replace(feed_forward=MixtureOfExperts())), 1),
        (changed(model=LARGE.model.replace(feed_forward=SwitchRouting())), 1),
        (changed(model=LARGE.model.replace(feed_forward=MixtureOfExperts()), training=Training(micro_batches=4)), 4),
        (Run(), 1),
    ],
)
def test_the_default_number_of_micro_batches_fits_the_caches(run, parts):
    assert micro_batches(run) == parts


def test_an_accelerator_has_one_micro_batch_by_default():
    with compiling_for("gpu"):
        assert micro_batches(LARGE) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        LARGE,
        changed(model=ModelConfig(layers=2, d_model=64, attention=Attention(heads=8), feed_forward=Dense(d_ff=512))),
    ],
)
def test_activation_bytes_are_within_a_factor_of_two_of_the_compiler(run):
    run = run.replace(training=Training(micro_batches=1), task=run.task.replace(batch_size=4))
    source = run.task.load()
    chunk = jax.jit(train_chunk, static_argnums=3).lower(jax.eval_shape(start, run), run, source, 1).compile()
    assert 0.5 < activation_bytes(run) / chunk.memory_analysis().temp_size_in_bytes < 2


@pytest.mark.slow
def test_the_default_micro_batches_give_the_bits_of_the_same_number_given(monkeypatch):
    monkeypatch.setattr(cpu, "CACHE_BYTES", 10_000)
    monkeypatch.setattr(cpu, "MIN_TOKENS", 8)
    small = Run(
        model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2)),
        task=StandardLibrary(length=8, batch_size=4),
    )
    assert micro_batches(small) == 4
    state, losses = jax.jit(start)(small), {}
    for parts in (None, 4, 1):
        run = small.replace(training=Training(micro_batches=parts))
        losses[parts] = jax.jit(train_chunk, static_argnums=3)(state, run, run.task.load(), 3)[1]["loss"]
    np.testing.assert_array_equal(losses[None], losses[4])
    np.testing.assert_allclose(losses[None], losses[1], rtol=1e-5)
