"""NAME: what is trained, and what for.

Plan: flaxformer train NAME.py --plan (parameters, FLOPs, memory and time; trains nothing)
Train: flaxformer train NAME.py (the same command again resumes; Ctrl-C saves)
Use: flaxformer generate runs/NAME --prompt "def "
"""

from flaxformer import (
    AdamW,
    Attention,
    Cosine,
    Dense,
    LanguageModel,
    ModelConfig,
    Rotary,
    Run,
    StandardLibrary,
    Training,
)

run = Run(
    model=ModelConfig(
        layers=2,
        d_model=64,
        attention=Attention(heads=4),
        feed_forward=Dense(activation="gelu"),
        positions=Rotary(),
        head=LanguageModel(tied=True),
    ),
    # Text of your own: TextFiles(path="my_text.txt", length=64, batch_size=16).
    task=StandardLibrary(length=64, batch_size=16),
    # A constant rate, decay=Constant(), or a decay at the end alone, "WarmupStableDecay()" of the catalog, lets the job
    # be extended: the same command with more training.steps.
    optimizer=AdamW(learning_rate=2e-3, warmup_steps=50, decay=Cosine(), final_fraction=0.1, clip=1.0),
    training=Training(steps=500, evaluate_every=100),
)
