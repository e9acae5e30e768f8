"""NAME: a task of your own, with examples generated from random keys.

Check: flaxformer check NAME.py
Run: flaxformer run NAME.py
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import AdamW, Attention, Axis, Batch, Claim, Dense, ModelConfig, Run, Study, Training, static
from flaxformer.tasks.synthetic import SyntheticTask, next_token


class KIND(SyntheticTask):
    """A sequence of symbols, followed by the largest of them; only that last token is scored.

    Declare the fields of a task as `static(...)`: all arms of a program share its data.
    """

    symbols: int = static(8, at_least=2)
    length: int = static(6, at_least=1)

    @property
    def vocabulary(self) -> int:
        """Number of different tokens: the symbols, and one that asks for the answer."""
        return self.symbols + 1

    @property
    def sequence_length(self) -> int:
        """Number of tokens that the model reads per example."""
        return self.length + 1

    def example(self, key: Array) -> Batch:
        """Return one example: a pure function of a random key."""
        symbols = jax.random.randint(key, (self.length,), 0, self.symbols)
        tokens = jnp.concatenate([symbols, jnp.array([self.symbols]), symbols.max()[None]])
        return next_token(tokens, scored=jnp.arange(self.length + 2) == self.length + 1)


study = Study(
    name="NAME",
    question="Does finding the largest symbol need a second layer?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=9, layers=1, d_model=32, attention=Attention(heads=4), feed_forward=Dense(d_ff=64)
        ),
        task=KIND(batch_size=32),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.layers", {"1": 1, "2": 2})],
    seeds=range(5),
    metric="validation_accuracy",
    claims=[Claim("two layers are more accurate", higher={"layers": "2"}, than={"layers": "1"})],
    caveats=["One width ({model.d_model}), one learning rate ({optimizer.learning_rate}), {training.steps} steps."],
)
