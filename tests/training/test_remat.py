"""Computing layers again in the backward pass changes no value, and saves memory."""

import functools

import jax
import numpy as np
import pytest

from flaxformer.components import Attention, Dense, Elman
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.core.paths import replace_at
from flaxformer.model.remat import REMATS
from flaxformer.tasks import Copy
from flaxformer.training import Run, start
from flaxformer.training.step import backward

MODELS = {
    "deep decoder": ModelConfig(
        vocabulary=7, layers=16, d_model=16, attention=Attention(heads=2), feed_forward=Dense(d_ff=64)
    ),
    "decoder": ModelConfig(
        vocabulary=7, layers=2, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=5), dropout=0.2
    ),
    "encoder-decoder": ModelConfig(
        vocabulary=7, layers=1, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=5)
    ).with_encoder(),
    "recurrent": recurrent_model(Elman(), vocabulary=7, layers=2, d_model=6, dropout=0.2),
}
slow = pytest.mark.slow


def run_of(name, remat):
    model = MODELS[name]
    form = "paired" if getattr(model, "encoder", None) else "joined"
    task = Copy(symbols=5, length=3, batch_size=16, evaluation_batches=1, form=form)
    return replace_at(Run(model=model, task=task), {"training.remat": remat})


@functools.cache
def compiled(name, layout, remat):
    """The loss and its gradient of a first step, and the memory that computing them took, in bytes."""
    run = run_of(name, remat)
    batch, state = run.task.load().batch(jax.random.key(0), 0), start(run, layout)
    program = jax.jit(lambda state: backward(state, run, batch)[:2]).lower(state).compile()
    return program(state), program.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout", "remat"),
    [
        ("deep decoder", "scanned", "block"),
        pytest.param("deep decoder", "scanned", "dots", marks=slow),
        *(
            pytest.param(name, layout, remat, marks=slow)
            for name in ("decoder", "encoder-decoder", "recurrent")
            for layout in ("unrolled", "scanned")
            for remat in REMATS
            if remat != "none"
        ),
    ],
)
def test_values_and_gradients_are_unchanged(name, layout, remat):
    plain, again = (compiled(name, layout, kind)[0] for kind in ("none", remat))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-6), plain, again)


@pytest.mark.long
@pytest.mark.parametrize(("remat", "most"), [("block", 1 / 3), pytest.param("dots", 0.7, marks=slow)])
def test_a_deep_stack_needs_less_memory(remat, most):
    assert compiled("deep decoder", "scanned", remat)[1] < most * compiled("deep decoder", "scanned", "none")[1]


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("remat", ["feed_forward", "attention"])
def test_one_branch_computed_again_takes_memory_between_all_and_nothing(remat):
    none, branch, block = (compiled("deep decoder", "scanned", kind)[1] for kind in ("none", remat, "block"))
    assert block < branch < none


@pytest.mark.slow
def test_keeping_the_products_takes_memory_between_all_and_nothing():
    none, dots, block = (compiled("deep decoder", "scanned", remat)[1] for remat in ("none", "dots", "block"))
    assert block < dots < none


@pytest.mark.every(2, "long")
@pytest.mark.parametrize(
    "name", [pytest.param("decoder", marks=slow), "encoder-decoder", pytest.param("recurrent", marks=slow)]
)
@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_every_stack_is_computed_again_in_either_layout(name, layout):
    def places(remat):
        run = run_of(name, remat)
        state = jax.eval_shape(lambda: start(run, layout))
        batch = jax.eval_shape(lambda: run.task.load().batch(jax.random.key(0), 0))
        jaxpr = jax.make_jaxpr(lambda state, batch: backward(state, run, batch)[:2])(state, batch)
        return str(jaxpr).count("prevent_cse")

    stacks = 2 if name == "encoder-decoder" else 1
    assert places("none") == 0
    assert places("block") == stacks * (1 if layout == "scanned" else MODELS[name].layers)
