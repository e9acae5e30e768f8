"""Character model of the size of nanoGPT's GPU configuration: 6 layers, 6 heads, width 384, 5,000 steps.

Data: tiny Shakespeare, as in shakespeare.py.
Command: flaxformer train experiments/training/shakespeare_gpu.py
Cost: 10,818,432 weights, 1.17 TFLOP per step, 5.9 × 10¹⁵ in all: minutes on a GPU, 14 hours and more on 2 CPU cores.
Published: best validation loss 1.4697 (nanoGPT's README); after it the model overfits.
Measured: not yet; only planned, without a GPU.
    Expected: the least of the 20 evaluations from 1.46 to 1.49, and a rise after it.
Deviations: as in shakespeare.py; bfloat16 without a scaler; checkpoints keep the best of the evaluations.
"""

from flaxformer import (
    AdamW,
    Attention,
    Cosine,
    Dense,
    LanguageModel,
    LayerNorm,
    LearnedPositions,
    ModelConfig,
    Normal,
    Run,
    TextFiles,
    Tokens,
    Training,
)

run = Run(
    model=ModelConfig(
        layers=6,
        d_model=384,
        attention=Attention(heads=6, bias=False, out_bias=False),
        feed_forward=Dense(activation="gelu", bias=False),
        norm_kind=LayerNorm(affine="gain"),
        positions=LearnedPositions(max_length=256, std=0.02),
        head=LanguageModel(tied=True, bias=False),
        initializer=Normal(deviation=0.02),
        inputs=Tokens(std=0.02),
        dropout=0.2,
    ),
    task=TextFiles(path="data/shakespeare.txt", length=256, batch_size=64, evaluation_batches=6),
    optimizer=AdamW(
        learning_rate=1e-3, warmup_steps=100, decay=Cosine(), final_fraction=0.1, beta2=0.99, weight_decay=0.1, clip=1.0
    ),
    training=Training(steps=5000, evaluate_every=250, precision="bfloat16"),
)
