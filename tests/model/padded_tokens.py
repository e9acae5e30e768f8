"""A small model on tokens with padding before and between them, and the check of its decoding."""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer.components import Attention, Dense, NoPositions
from flaxformer.config import ModelConfig
from flaxformer.model import apply, beam_search, extend, generate, init, new_cache
from flaxformer.model.weights import with_layout

V, D, T = 11, 8, 7
TOKENS = jnp.asarray([[3, 1, 4, 1, 5, 9, 2], [0, 7, 6, 5, 0, 3, 5]])
VALID = jnp.asarray([[True] * 7, [False, True, True, True, False, True, True]])
REAL = np.asarray(VALID)


def model(**changes):
    fields = {"vocabulary": V, "layers": 1, "d_model": D, "positions": NoPositions()}
    return ModelConfig(**(fields | {"attention": Attention(heads=2), "feed_forward": Dense(d_ff=6)} | changes))


def weights_of(config):
    dice = np.random.default_rng(0)
    params = jax.jit(lambda key: init(key, config))(jax.random.key(0))
    return jax.tree.map(lambda x: x + jnp.asarray(0.3 * dice.standard_normal(x.shape), x.dtype), params)


def check_decoding(config, params, layouts=("unrolled",), beams=False, **inputs):
    """Decoding in parts has the logits of the full pass in each layout; generation and beams follow the last."""
    run, extended = jax.jit(apply), jax.jit(extend)
    expected = run(params, config, TOKENS, valid=VALID, **inputs)
    for layout in layouts:
        params = with_layout(params, layout)
        np.testing.assert_allclose(run(params, config, TOKENS, valid=VALID, **inputs)[REAL], expected[REAL], atol=3e-5)
        cache, parts = new_cache(params, config, (2,), T, **inputs), []
        for here in (slice(0, 4), slice(4, 7)):
            output, cache = extended(params, config, TOKENS[:, here], cache, valid=VALID[:, here])
            parts.append(output)
        np.testing.assert_allclose(jnp.concatenate(parts, 1)[REAL], expected[REAL], atol=3e-5)
    if beams:
        search = beam_search(params, config, TOKENS, steps=3, beams=2, valid=VALID, **inputs)
        tokens, scores = search.tokens[:, 1], search.scores[:, 1]
    else:
        tokens = generate(params, config, TOKENS, steps=3, valid=VALID, **inputs).tokens
    whole, valid = jnp.concatenate([TOKENS, tokens], -1), jnp.concatenate([VALID, jnp.ones((2, 3), bool)], -1)
    logits = run(params, config, whole, valid=valid, **inputs)[:, T - 1 : -1]
    if beams:
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)[..., 0].mean(-1)
        np.testing.assert_allclose(scores, picked, atol=3e-5)
    else:
        assert logits.argmax(-1).tolist() == tokens.tolist()
