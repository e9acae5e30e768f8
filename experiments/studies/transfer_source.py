"""Induction, learnt from scratch: the source of the weights of transfer_methods.py. Nothing is claimed here.

Command: flaxformer run experiments/studies/transfer_source.py, then transfer_methods.py beside it
Cost: 8 runs in 1 compiled program, one to two minutes on 2 CPU cores.
"""

from flaxformer import AdamW, Attention, Dense, Induction, ModelConfig, Rotary, Run, Study, Training

study = Study(
    name="transfer_source",
    question="How well is induction learnt from scratch?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=16,
            layers=2,
            d_model=32,
            attention=Attention(heads=2, bias=False),
            feed_forward=Dense(d_ff=64),
            positions=Rotary(),
        ),
        task=Induction(symbols=16, length=16, batch_size=64),
        optimizer=AdamW(learning_rate=1e-2, warmup_steps=50),
        training=Training(steps=1000, evaluate_every=250),
    ),
    seeds=range(10, 18),
    metric="validation_accuracy",
    keep="final",
    caveats=["One model and one learning rate; the weights are used by transfer_methods.py."],
)
