"""A file of a run that ends in seconds, and its text."""

FILE = """
from flaxformer import ModelConfig, Attention
from flaxformer.tasks import TextFiles
from flaxformer.training import AdamW, Run, Training

run = Run(
    model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2)),
    task=TextFiles(path="text.txt", length=8, batch_size=4, evaluation_batches=1),
    optimizer=AdamW(learning_rate=1e-2),
    training=Training(steps=4, evaluate_every=2),
)
"""
TEXT = "to be or not to be " * 50
