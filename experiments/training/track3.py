"""Network of modded-nanogpt's optimisation benchmark (track 3): 12 layers, 6 heads of 128, width 768, 1,024 tokens.

The benchmark fixes network, data and batch, and counts the steps to a validation loss of 3.28.

Data: 2 billion tokens of FineWeb by GPT-2's tokenizer, 4 GB (cached_fineweb10B.py of the benchmark fetches 17 shards):
    python experiments/training/track3_data.py data/fineweb10B data/fineweb10B/prepared
Command: flaxformer train experiments/training/track3.py
    flaxformer plan experiments/training/track3.py --target h200 shows whether a step fits.
Cost: 162,354,816 weights, of which 123.6 million in products; 855 MFLOP per token, 1.5 × 10¹⁸ in all: about an hour of
    one H200 at the 560,000 tokens/s of GPT-2 124M, estimated. A micro-batch is 64 sequences.
Published: validation loss 3.2787 after 3,250 steps (result 36 of the benchmark's README at f411b3d, mean of 10 runs:
    Muon at 0.025 with AdamW); Adam alone takes 5,625 steps (result 2, one run, "undertuned").
Measured: not trained. The number of weights equals that of the benchmark's network, counted from its description.
Deviations: windows are drawn at random, where the benchmark reads its shards in order; Muon takes five iterations of
    degree five, where the benchmark takes twelve of other coefficients; AdamW does not shrink embeddings, biases and
    gains, which the benchmark shrinks at 0.001; the embedding table is not stored in bfloat16; rotary pairs are the
    halves of the first 64 entries of a head, which differs by a permutation of them.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from flaxformer import (
    ZERO_OUTPUTS,
    Attention,
    ByRole,
    Dense,
    Initial,
    LanguageModel,
    LeCun,
    ModelConfig,
    Muon,
    NormPlacement,
    RMSNorm,
    Role,
    Rotary,
    Run,
    TokenFiles,
    Training,
    WarmupStableDecay,
    leaf,
)
from flaxformer.model import Transformer
from flaxformer.nn.widen import widen
from flaxformer.training.per_layer import LayerView

RATE, DECAY = 0.025, 0.05
"""Of Muon's matrices; the benchmark has other learning rates for the table, the head, and biases and gains."""
VECTORS = 0.015


class BoundedLogits(LanguageModel):
    """Logits bound · z / √(z² + bound²) of z = x G + b."""

    bound: float = leaf(15.0, above=0)

    def project(
        self, weights: LanguageModel.Weights, features: Float[Array, "*batch D"], table: Float[Array, "V D"] | None
    ) -> Float[Array, "*batch outputs"]:
        logits = super().project(weights, features, table)
        wide = widen(logits)
        return (self.bound * wide / jnp.sqrt(wide**2 + self.bound**2)).astype(logits.dtype)


class MuonAndTable(Muon):
    """Muon, and an embedding table that moves `table` times as fast as biases and gains."""

    layers: ClassVar[LayerView] = "stored"
    table: float = leaf(1.0, at_least=0)

    def direction(self) -> optax.GradientTransformation:
        def faster(updates: Transformer, params: Transformer | None) -> Transformer:
            return updates.replace(embedding=jax.tree.map(lambda update: self.table * update, updates.embedding))

        return optax.chain(super().direction(), optax.stateless(faster))


run = Run(
    model=ModelConfig(
        vocabulary=50304,
        layers=12,
        d_model=768,
        attention=Attention(
            heads=6,
            query_key_norm=RMSNorm(affine="none"),
            scale_exponent=0.43699,  # 128^−0.43699 = 0.12
        ),
        feed_forward=Dense(activation="squared_relu", d_ff=3072),
        norm=NormPlacement(pre=True, embedding=True, final=True),
        norm_kind=RMSNorm(),
        positions=Rotary(base=1024 ** (32 / 31), rotated_width=64),  # 32 frequencies from 1 to 1/1024
        head=BoundedLogits(bias=True, wide_logits=False),
        initializer=LeCun(gain=0.33**0.5),
        initial=(ZERO_OUTPUTS, Initial(weights=("head/matrix",), factor=0.0)),
        parametrization=ByRole(
            base_width=768,
            output=Role(rate=0.004 / RATE, decay=0.001 / DECAY),
            vector=Role(rate=VECTORS / RATE),
        ),
    ),
    task=TokenFiles(path="data/fineweb10B/prepared", length=1024, batch_size=512, evaluation_batches=20),
    optimizer=MuonAndTable(
        table=0.7 / VECTORS,
        learning_rate=RATE,
        decay=WarmupStableDecay(share=0.7, cool_down="linear"),
        rms=None,
        beta1=0.8,
        beta2=0.95,
        epsilon=1e-10,
        weight_decay=DECAY,
    ),
    training=Training(steps=3250, evaluate_every=125, micro_batches=8, precision="bfloat16"),
)
