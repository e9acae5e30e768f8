"""The input skip equals a loop over branches."""

import jax
import jax.numpy as jnp
import numpy as np
from naive import D, T, assert_gradients, sequence

from flaxformer import Attention, Context, ModelConfig, NoPositions
from flaxformer.catalog import InputSkip
from flaxformer.core.params import table
from flaxformer.model import specs

RULE, BRANCHES = InputSkip(), 3
DICE = np.random.default_rng(10)
MATRICES = [DICE.standard_normal((D, D)) for _ in range(BRANCHES)]
FACTORS = [{"stream": np.array(a), "input": np.array(b)} for a, b in ((0.9, 0.2), (1.1, -0.3), (0.8, 0.5))]


def through(factors, x, tanh):
    """The residual stream after branches tanh(x M), by the methods of the rule."""
    places = jnp.arange(T)
    context, stream = Context(query_positions=places, key_positions=places), RULE.begin(x, 2)
    for own, matrix in zip(factors, MATRICES, strict=True):
        weights = InputSkip.Weights(**own)
        stream = RULE.join(weights, stream, tanh(RULE.read(weights, stream, context) @ matrix), context)
    return RULE.end(stream)


def loop(factors, x):
    y = x
    for own, matrix in zip(factors, MATRICES, strict=True):
        y = own["stream"] * y + own["input"] * x
        y = y + np.tanh(y @ matrix)
    return y


def test_the_input_skip_equals_its_equation():
    with jax.enable_x64(True):
        found = through(jax.tree.map(jnp.asarray, FACTORS), jnp.asarray(sequence()), jnp.tanh)
    np.testing.assert_allclose(found, loop(FACTORS, sequence()), rtol=1e-9)
    factors = DICE.standard_normal((T, D))
    assert_gradients(
        lambda own, x: (through(own, x, jnp.tanh) * factors).sum(),
        lambda own, x: (loop(own, x) * factors).sum(),
        (FACTORS, sequence()),
    )


def test_it_begins_as_plain_addition_with_two_weights_per_branch():
    model = ModelConfig(layers=1, d_model=D, attention=Attention(heads=2), positions=NoPositions(), residual=RULE)
    own = [path for path, _ in table(specs(model)) if path.endswith(("/stream", "/input"))]
    assert len(own) == 2 * 2
    assert (RULE.initial_stream, RULE.initial_input) == (1, 0)
