"""Character model of the size of nanoGPT's CPU configuration: 4 layers, 4 heads, width 128, 2,000 steps.

Data: tiny Shakespeare, 1,115,394 characters, the last tenth held out:
    curl --create-dirs -o data/shakespeare.txt \
        https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
    For another text: task.path=FILE.
Command: flaxformer train experiments/training/shakespeare.py
Cost: 50 s on 2 CPU cores; 828,544 weights, 1.5 million characters.
Published: 1.88 nats per character after 2,000 steps (nanoGPT's README, "I only have a macbook").
Measured: 1.867 and 1.880 (seeds 0 and 1); expected 1.86 to 1.93. 47 s of training each.
Deviations: tokens are bytes, of which the text has 65, so 191 rows of the table are never read; weight decay
    excludes embeddings; the output matrices of branches are drawn like the others, not 1/√(2L) as large; validation is
    on 4,800 windows spread evenly over the held-out text, where nanoGPT draws 20 batches.
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
        layers=4,
        d_model=128,
        attention=Attention(heads=4, bias=False, out_bias=False),
        feed_forward=Dense(activation="gelu", bias=False),
        norm_kind=LayerNorm(affine="gain"),
        positions=LearnedPositions(max_length=64, std=0.02),
        head=LanguageModel(tied=True, bias=False),
        initializer=Normal(deviation=0.02),
        inputs=Tokens(std=0.02),
    ),
    task=TextFiles(path="data/shakespeare.txt", length=64, batch_size=12, evaluation_batches=400),
    optimizer=AdamW(
        learning_rate=1e-3, warmup_steps=100, decay=Cosine(), final_fraction=0.1, beta2=0.99, weight_decay=0.1, clip=1.0
    ),
    training=Training(steps=2000, evaluate_every=250),
)
