"""Which features of a modern recipe matter, each removed from the whole and each added to the plain baseline?

The whole has seven features at once; each of them was published with a gain over some baseline, and none with what is
left of that gain beside the six others.

| feature | source |
| --- | --- |
| QK norm | Henry et al. 2020; Dehghani et al. 2023 |
| output gates | Qiu et al. 2025 (`flaxformer.catalog.output_gates`, a gate per element) |
| value embeddings | modded-nanogpt, record of 4 December 2024 (`flaxformer.catalog.value_embeddings`) |
| input skip | modded-nanogpt and nanochat, "x0 skip" (`flaxformer.catalog.input_skip`) |
| Muon | Jordan et al. 2024, in place of AdamW |
| WSD | Hu et al. 2024, in place of a cosine |
| zero outputs | modded-nanogpt: W_O and W_2 start at 0 (`flaxformer.catalog.zero_outputs`) |

All arms have the training compute of the baseline. Arms with Muon have its learning rate, all others that of AdamW: the
best of 0.001, 0.002, 0.004, 0.008, 0.016 and 0.032 for the baseline and for the baseline with Muon, by the validation
loss of seeds 100 and 101:

| | 0.001 | 0.002 | 0.004 | 0.008 | 0.016 | 0.032 |
| --- | --- | --- | --- | --- | --- | --- |
| baseline (AdamW) | 2.192 | 2.009 | 1.908 | 1.886 | 1.959 | 2.097 |
| with Muon | 2.294 | 2.094 | 1.903 | 1.786 | 1.747 | 1.795 |

Command: flaxformer run experiments/studies/modern_recipe.py
Cost: 80 runs in 16 compiled programs, about 15 minutes on 2 quiet CPU cores.
Expected: Muon and value embeddings matter alone and within the whole; of the others, some matter alone and few within
the whole, since features that speed up the first steps share their gain (WSD, zero outputs, Muon).
"""

from jaxtyping import Array, Float

from flaxformer import (
    ZERO_OUTPUTS,
    AdamW,
    Attention,
    Context,
    Cosine,
    Dense,
    EqualCost,
    KeysValues,
    ModelConfig,
    Muon,
    RMSNorm,
    Rotary,
    Run,
    StandardLibrary,
    Training,
    WarmupStableDecay,
    param,
    static,
)
from flaxformer.catalog import ElementGates, InputSkip, ValueEmbeddings
from flaxformer.study import leave_one_out


class RecipeAttention(ElementGates, ValueEmbeddings):
    """Attention with a field for each of two features of the catalog; with neither, plain attention."""

    class Weights(Attention.Weights):
        """Weights of `ElementGates` and of `ValueEmbeddings`, each with its feature alone."""

        gate: Float[Array, "d_model heads d_value"] | None = param(fan_in="d_model", when="gates")
        gate_bias: Float[Array, "heads d_value"] | None = param(init="zeros", decay=False, when="has_gate_bias")
        table: Float[Array, "vocabulary key_value_heads d_value"] | None = param(
            std=1.0, decay=False, kind="embedding", when="value_embeddings"
        )
        share: Float[Array, ""] | None = param(value=0.5, decay=False, when="value_embeddings")

    gates: bool = static(False)
    value_embeddings: bool = static(False)
    has_gate_bias = property(lambda self: self.gates and self.bias)

    def transform_heads(
        self, weights: Weights, heads: Float[Array, "*batch T N d_v"], x: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T N d_v"]:
        return super().transform_heads(weights, heads, x, context) if self.gates else heads

    def keys_and_values(self, weights: Weights, source: Float[Array, "*batch S D"], context: Context) -> KeysValues:
        if self.value_embeddings:
            return super().keys_and_values(weights, source, context)
        plain = Attention.keys_and_values(self, weights, source, context)
        assert isinstance(plain, KeysValues)
        return plain


study = leave_one_out(
    Run(
        model=ModelConfig(
            layers=4,
            d_model=64,
            attention=RecipeAttention(heads=4),
            feed_forward=Dense(d_ff=256),
            norm_kind=RMSNorm(),
            positions=Rotary(),
        ),
        task=StandardLibrary(length=64, batch_size=8),
        optimizer=AdamW(learning_rate=0.008, warmup_steps=50, decay=Cosine()),
        training=Training(steps=500, evaluate_every=25),
    ),
    {
        "QK norm": {"model.attention.query_key_norm": RMSNorm()},
        "output gates": {"model.attention.gates": True},
        "value embeddings": {"model.attention.value_embeddings": True},
        "input skip": {"model.residual": InputSkip},
        "Muon": {"optimizer": Muon, "optimizer.learning_rate": 0.016},
        "WSD": {"optimizer.decay": WarmupStableDecay()},
        "zero outputs": {"model.initial": (ZERO_OUTPUTS,)},
    },
    name="modern_recipe",
    question="Which features of a modern recipe matter, alone and within the whole?",
    compare=EqualCost("compute", tolerance=0.03),
    caveats=[
        "One small byte-level model and 500 steps: gains that need depth, length or long training are not seen.",
        "The two learning rates are those of the baseline with AdamW and with Muon; no other feature has its own.",
    ],
)
