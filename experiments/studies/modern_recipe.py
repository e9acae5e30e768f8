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
loss of seeds 100 and 101 after 500 steps:

| | 0.001 | 0.002 | 0.004 | 0.008 | 0.016 | 0.032 |
| --- | --- | --- | --- | --- | --- | --- |
| baseline (AdamW) | 2.192 | 2.009 | 1.908 | 1.886 | 1.959 | 2.097 |
| with Muon | 2.294 | 2.094 | 1.903 | 1.786 | 1.747 | 1.795 |

Command: flaxformer run experiments/studies/modern_recipe.py
Cost: 80 runs in 16 compiled programs, 31 minutes of CPU time; 59 minutes on 2 CPU cores that other programs used too.
Expected: Muon and value embeddings matter alone and within the whole; of the others, some matter alone and few within
the whole, since features that speed up the first steps share their gain (WSD, zero outputs, Muon).

Result: all together, +0.087 nats [+0.066, +0.109]; the baseline's loss is reached with 1 / 1.19 [1.12, 1.34] of its
compute. Of 14 claims, one is supported after Holm: removing QK norm from the whole is worse; 13 are inconclusive.
Effects are positive where good:

| feature | within the whole | alone | interaction |
| --- | --- | --- | --- |
| QK norm | +0.071 [+0.047, +0.079] supported | +0.010 [-0.001, +0.079] | +0.060 [+0.049, +0.082] |
| WSD | +0.040 [-0.019, +0.058] | +0.018 [-0.083, +0.039] | +0.022 [-0.014, +0.099] |
| zero outputs | +0.015 [-0.002, +0.058] | -0.022 [-0.040, +0.003] | +0.037 [-0.038, +0.059] |
| input skip | +0.008 [-0.002, +0.066] | +0.010 [-0.010, +0.017] | -0.002 [-0.014, +0.057] |
| value embeddings | +0.003 [-0.015, +0.040] | +0.043 [-0.007, +0.057] | -0.041 [-0.063, +0.003] |
| Muon | -0.012 [-0.055, +0.019] | +0.033 [+0.013, +0.157] | -0.045 [-0.085, +0.053] |
| output gates | -0.023 [-0.085, -0.007] | +0.008 [-0.006, +0.027] | -0.031 [-0.047, +0.005] |
| sum | +0.10 [-0.23, +0.19] | +0.101 [-0.007, +0.158] | 0.00 [-0.13, +0.13] |

So the expectation is not confirmed: in the means, value embeddings and Muon have the largest effects alone, and next
to none within the whole, where QK norm has seven times its effect alone. Likely reasons, not tested: the rate of the
whole is twice that of the baseline, and QK norm tolerates high rates; and at 512 tokens per step, the iterations of
Newton and Schulz are 29 % of the compute, so that an arm with Muon has about 30 % fewer steps than the same arm
without. Seconds are not reported, since the cores were busy.
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
