"""Initial loss of default models: near ln V for any head, width and depth, and decreasing from the first steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import Attention, Classifier, Gated, LanguageModel, Rotary, Tokens
from flaxformer.config import ModelConfig
from flaxformer.model import apply, init
from flaxformer.nn.losses import cross_entropy
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training, start, train_step

HEADS = {"untied": LanguageModel(), "tied": LanguageModel(tied=True)}
V = 256


def initial_loss(config):
    """Return the loss of the next token of a random, unpredictable text, in nats."""
    key = jax.random.key(0)
    tokens = jax.random.randint(key, (16, 65), 0, config.vocabulary)
    logits = jax.jit(apply)(init(key, config, "scanned"), config, tokens[:, :-1])
    total, count = cross_entropy(logits, tokens[:, 1:], jnp.ones((16, 64)))
    return total / count


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(
    ("width", "depth"),
    [
        *(
            (64, 1),
            (256, 3),
            pytest.param(64, 48, marks=pytest.mark.slow),
            pytest.param(1024, 1, marks=pytest.mark.slow),
        ),
        pytest.param(1024, 48, marks=pytest.mark.exhaustive),
    ],
)
def test_the_initial_loss_of_defaults_is_near_log_vocabulary(head, width, depth):
    config = ModelConfig(vocabulary=V, layers=depth, d_model=width, head=head)
    assert abs(initial_loss(config) - np.log(V)) < 0.6


@pytest.mark.parametrize("changes", [
    {"positions": Rotary(), "feed_forward": Gated()},
    {"inputs": Tokens(scale_exponent=0.5), "vocabulary": 4096},
    {"inputs": Tokens(std=0.02)},
    {"attention": Attention(heads=4), "parallel": True},
], ids=["rotary", "half", "given", "parallel"])  # fmt: skip
def test_the_initial_loss_with_a_tied_head_is_near_log_vocabulary(changes):
    config = ModelConfig(layers=2, d_model=64, head=LanguageModel(tied=True)).replace(**changes)
    assert abs(initial_loss(config) - np.log(config.vocabulary)) < 0.6


def test_a_tied_table_gives_embeddings_of_variance_one_by_default():
    config = ModelConfig(d_model=64, head=LanguageModel(tied=True))
    assert config.embedding == Tokens(scale_exponent=0.75, std=64**-0.75)
    assert config.replace(inputs=Tokens(std=0.02)).embedding == Tokens(std=0.02)
    assert config.replace(inputs=Tokens(scale_exponent=0.0)).embedding == Tokens(scale_exponent=0.0, std=1.0)
    assert config.replace(head=LanguageModel()).embedding == Tokens()
    read = config.embedding.apply(init(jax.random.key(0), config).embedding, jnp.arange(256), None, None, config.sizes)
    np.testing.assert_allclose(np.square(read).mean(), 1, rtol=0.05)


def test_an_encoder_scales_a_shared_table_like_the_decoder():
    config = ModelConfig(layers=1, d_model=64, head=LanguageModel(tied=True)).with_encoder(inputs=Tokens(shared=True))
    assert config.resolved_encoder.inputs == Tokens(shared=True, scale_exponent=0.75)
    own = config.replace(encoder=config.encoder.replace(inputs=Tokens(shared=True, scale_exponent=0.0)))
    assert own.resolved_encoder == own.encoder
    params = init(jax.random.key(0), config)
    tokens = jnp.arange(8)[None]
    default, by_hand = (apply(params, one, tokens, source=tokens) for one in (
        config, config.replace(inputs=config.embedding, encoder=config.resolved_encoder)))  # fmt: skip
    np.testing.assert_array_equal(default, by_hand)


@pytest.mark.slow
def test_initial_logits_of_a_wide_head_have_variance_one():
    config = ModelConfig(layers=1, d_model=512, head=Classifier(classes=10))
    matrix = init(jax.random.key(0), config).head.matrix
    np.testing.assert_allclose(512 * np.square(matrix).mean(), 1, rtol=0.1)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_the_default_model_reduces_the_loss_in_a_few_steps(head):
    run = Run(
        model=ModelConfig(vocabulary=16, layers=1, d_model=64, head=head),
        task=Copy(symbols=4, length=3, batch_size=16),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=10),
        training=Training(steps=60),
    )
    state, source, losses = start(run), run.task.load(), []
    step = jax.jit(train_step)
    for number in range(60):
        state, metrics = step(state, run, source.batch(jax.random.key(0), number))
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-10:]) < 0.6 * losses[0]
