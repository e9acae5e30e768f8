"""User-defined task: the parity of a sequence of bits, predicted at the end or after every bit.

Claim: a model that predicts the parity after every bit is more accurate than one that predicts it at the end.
Source: Nye et al. 2021 (scratchpads); Feng et al. 2023; Kim & Suzuki 2024 (parity is learned with its intermediate
steps, and not without).
Command: flaxformer run examples/components/own_task.py
Cost: 10 runs in 2 compiled programs, under a minute on 2 CPU cores.
Expected: the claim supported: near 1 with the steps, and near ½, which is chance, without them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import AdamW, Attention, Axis, Batch, Claim, Dense, ModelConfig, Run, Study, Training, static
from flaxformer.tasks.synthetic import SyntheticTask, next_token


class Parity(SyntheticTask):
    """Random bits (tokens 0 and 1), then the parity of their sum (tokens 2 and 3), which is scored.

    written: insert the parity of the bits so far after every bit, and score each: b₁ p₁ b₂ p₂ … instead of b₁ b₂ … p.
    """

    bits: int = static(16, at_least=2)
    written: bool = static(False)

    @property
    def vocabulary(self) -> int:
        return 4

    @property
    def sequence_length(self) -> int:
        return 2 * self.bits - 1 if self.written else self.bits

    def example(self, key: Array) -> Batch:
        bits = jax.random.bernoulli(key, shape=(self.bits,)).astype(jnp.int32)
        parity = 2 + bits.cumsum() % 2
        alternating = jnp.stack([bits, parity], axis=1).reshape(-1)
        tokens = alternating if self.written else jnp.append(bits, parity[-1])
        return next_token(tokens, scored=tokens >= 2)


study = Study(
    name="own_task",
    question="Is parity learned if its intermediate steps are given?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=4, layers=2, d_model=64, attention=Attention(heads=4), feed_forward=Dense(d_ff=128)
        ),
        task=Parity(bits=16, batch_size=32),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=400, evaluate_every=100),
    ),
    axes=[Axis("task.written", {"at the end": False, "after every bit": True}, name="parity")],
    metric="validation_accuracy",
    claims=[
        Claim(
            "parity is predicted more accurately after every bit than at the end",
            higher={"parity": "after every bit"},
            than={"parity": "at the end"},
            by=0.1,
        ),
    ],
    caveats=["Each parity is predicted from the correct earlier ones (teacher forcing), not from the model's own."],
)
