"""A language model from start to end, without a study: model, loss, training step, training loop, generation.

It learns the bytes of a Python module. Run: python examples/minimal.py [STEPS]. 500 steps take about a minute on 2 CPU
cores and end near 1 nat per byte; all bytes alike would be 5.5.
"""

import argparse
import inspect
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxformer import PRE, Attention, Gated, LanguageModel, ModelConfig, RMSNorm, Rotary
from flaxformer.model import Sampling, apply, generate, init
from flaxformer.nn import cross_entropy

BATCH, LENGTH = 16, 64

config = ModelConfig(
    vocabulary=256,
    layers=2,
    d_model=64,
    attention=Attention(heads=4),
    feed_forward=Gated(d_ff=128),
    norm=PRE,
    norm_kind=RMSNorm(),
    positions=Rotary(),
    head=LanguageModel(tied=True),
)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3, weight_decay=0.01))


def loss_fn(params, tokens):
    """Mean of −log p(w_{t+1} | w_1 … w_t) over tokens [B, T + 1], in nats."""
    logits = apply(params, config, tokens[:, :-1])  # [B, T, V]
    total, count = cross_entropy(logits, tokens[:, 1:])
    return total / count


@jax.jit
def train_step(params, state, tokens):
    """One step of the optimizer: the new parameters and state, and the loss before it."""
    loss, gradient = jax.value_and_grad(loss_fn)(params, tokens)
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, loss


def batches(text, key):
    """Yield random windows of the text, [B, T + 1], without end."""
    while True:
        key, own = jax.random.split(key)
        starts = np.asarray(jax.random.randint(own, (BATCH,), 0, len(text) - LENGTH))
        yield jnp.asarray(text[starts[:, None] + np.arange(LENGTH + 1)], jnp.int32)


def train(steps, seed=0):
    """Train, and return the parameters and the losses of all steps."""
    init_key, data_key = jax.random.split(jax.random.key(seed))
    text = np.frombuffer(inspect.getsource(argparse).encode(), np.uint8)
    params = init(init_key, config)
    state, losses, source = optimizer.init(params), [], batches(text, data_key)
    for step in range(steps):
        params, state, loss = train_step(params, state, next(source))
        losses.append(float(loss))
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {losses[-1]:.3f} nats per byte")
    return params, losses


def continue_text(params, prompt, length, seed=0):
    """Return a prompt with a sampled continuation; keys and values of earlier tokens are cached."""
    tokens = np.frombuffer(prompt.encode(), np.uint8)[None].astype(np.int32)  # [1, T]
    found = generate(params, config, tokens, steps=length, sampling=Sampling(temperature=0.8), key=jax.random.key(seed))
    return prompt + bytes(np.asarray(found.tokens[0], np.uint8)).decode(errors="replace")


if __name__ == "__main__":
    trained, _ = train(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
    print(continue_text(trained, "def ", 200))
