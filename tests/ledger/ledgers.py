"""Small ledgers for tests."""

from flaxformer import AdamW, AssociativeRecall, Attention, Dense, Ledger, ModelConfig, Run, Training
from flaxformer.ledger.log import Begun

START = Run(
    model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=8)),
    task=AssociativeRecall(pairs=2, queries=2, batch_size=8, evaluation_batches=1),
    optimizer=AdamW(learning_rate=1e-5),
    training=Training(steps=6),
)


def ledger(**changes: object) -> Ledger:
    """A ledger of a tiny model whose learning rate is far too low."""
    fields = {"name": "tiny", "start": START, "effect": 0.01, "seeds": 12, "attempts": 2, "together": 4}
    return Ledger(**(fields | {"false_keeps": 0.2} | changes))


def begun(**changes: object) -> Begun:
    """The first line of a simulated ledger."""
    fields = {"name": "tiny", "effect": 0.5, "metric": "validation_loss", "unit": "nats", "goal": "lower"}
    fields |= {"attempts": 10, "seeds": 20, "together": 1, "first_seed": 0, "tuning_seeds": 3, "confirmation_seeds": 8}
    fields |= {"false_keeps": 0.05, "false_drops": 0.05, "recipe": "r", "data": "d", "semantics": 6}
    return Begun(**(fields | changes))
