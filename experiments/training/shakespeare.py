"""A character model of the size of nanoGPT's CPU configuration: 4 layers, 4 heads, width 128, 2,000 steps.

Data: any text file; the published figure is for tiny Shakespeare (1,115,394 characters, the last tenth held out), which
nanoGPT's and char-rnn's repositories hold as input.txt.
Command: flaxformer train experiments/training/shakespeare.py task.path=input.txt
Published: 1.88 nats a character after 2,000 steps (nanoGPT's README, "I only have a macbook").
"""

from flaxformer.config import LanguageModel, LayerNorm, LearnedPositions, ModelConfig, Normal
from flaxformer.tasks import TextFiles
from flaxformer.training import AdamW, Run, Training

run = Run(
    model=ModelConfig(
        layers=4,
        d_model=128,
        heads=4,
        activation="gelu",
        norm_kind=LayerNorm(affine="gain"),
        positions=LearnedPositions(max_length=64, std=0.02),
        query_key_value_bias=False,
        out_bias=False,
        feed_forward_bias=False,
        head=LanguageModel(tied=True, bias=False),
        initializer=Normal(deviation=0.02),
        embedding_std=0.02,
    ),
    task=TextFiles(path="input.txt", length=64, batch_size=12, evaluation_batches=400),
    optimizer=AdamW(
        learning_rate=1e-3, warmup_steps=100, decay="cosine", final_fraction=0.1, beta2=0.99, weight_decay=0.1, clip=1.0
    ),
    training=Training(steps=2000, evaluate_every=250),
)
