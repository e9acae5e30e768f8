"""What a plan says of a program is read off the program that trains."""

import jax
import jax.numpy as jnp
import pytest
from study.tiny import BASELINE

from flaxformer.components import GRU, Attention, TokenMixer
from flaxformer.config import Block, ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.study.program_cost import cost_of_run, slow_decoding
from flaxformer.training import start, train_step
from flaxformer.training.flops import flops_per_step


@pytest.mark.parametrize(
    "changes",
    [{}, *(pytest.param(one, marks=pytest.mark.slow) for one in ({"training.ema": 0.9}, {"model.d_model": 14}))],
    ids=str,
)
def test_figures_are_those_of_the_step_from_the_start(changes):
    run = replace_at(BASELINE, changes)
    found = cost_of_run(run, timed_steps=1)
    run = jax.tree.map(jnp.asarray, run)
    batch = run.task.load().batch(jax.random.key(1), 3)
    step = jax.jit(train_step).lower(start(run), run, batch).compile()
    memory = step.memory_analysis()
    assert found.compiled_flops == step.cost_analysis()["flops"]
    assert found.flops_per_step == flops_per_step(run)
    assert found.bytes_per_member == memory.argument_size_in_bytes + memory.temp_size_in_bytes
    assert found.seconds_per_step > 0


class Running(TokenMixer):
    """The sum of all tokens so far, without a decoding state."""

    def apply(self, weights, x, context):
        return jnp.cumsum(x, axis=-2)


def test_a_plan_names_the_mixers_that_decode_slowly():
    assert slow_decoding([ModelConfig(), ModelConfig(attention=GRU())]) == []
    pattern = (Block(attention=Attention()), Block(attention=Running()))
    [line, other] = slow_decoding([ModelConfig(attention=Running()), ModelConfig(pattern=pattern)] * 2)
    assert line.startswith("decoding is slow with model.attention Running")
    assert other.startswith("decoding is slow with model.pattern.1.attention Running")
