"""A small text model whose recipe lacks three things, for the scripted agent in agent.py."""

from flaxformer import AdamW, Attention, Dense, Ledger, ModelConfig, Rotary, Run, StandardLibrary, Training

ledger = Ledger(
    name="agent",
    start=Run(
        model=ModelConfig(
            layers=1,
            d_model=32,
            attention=Attention(heads=2, scale_exponent=0.0),  # without the factor 1/√d_head
            feed_forward=Dense(d_ff=64),
            positions=Rotary(),
        ),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=1e-3),  # too low for so few steps
        training=Training(steps=60),
    ),
    effect=0.02,
    attempts=40,
    seeds=30,
    together=2,
)
