"""Published architectures by name: `PUBLISHED["gpt2"]`, or `model=gpt2` on the command line.

They are ordinary configs, each of whose fields can be varied. Dropout is that of the publication, without dropout of
attention weights. Initial values are those of the publication or its code (GPT-2: the outputs of branches by 1/√(2 L);
T5: variance 1 / fan-in, and queries by 1/√d_head, since its logits have no scale); Llama's are not published.

| name | source |
| --- | --- |
| transformer-base, transformer-big | Vaswani et al. 2017, table 3 |
| gpt2, gpt2-medium, gpt2-large, gpt2-xl | Radford et al. 2019, table 2 |
| bert-base, bert-large | Devlin et al. 2019, section 3 |
| t5-small, t5-base, t5-large | Raffel et al. 2020, section 3.7 |
| llama-7b, llama-13b, llama-65b | Touvron et al. 2023a, table 2 |
| llama-2-70b | Touvron et al. 2023b, table 1 |
"""

from flaxformer.components.attention import Attention
from flaxformer.components.feed_forward import Dense, Gated
from flaxformer.components.heads import LanguageModel
from flaxformer.components.initializers import LeCun, Normal
from flaxformer.components.inputs import Tokens
from flaxformer.components.norms import POST, PRE, LayerNorm, NormPlacement, RMSNorm
from flaxformer.components.positions import LearnedPositions, RelativeBuckets, Rotary, Sinusoidal
from flaxformer.config.initial import DEPTH_SCALED_OUTPUTS, Initial
from flaxformer.config.model import ModelConfig


def _transformer(d_model: int, heads: int, dropout: float) -> ModelConfig:
    """Six post-norm layers on each side; one table of 37,000 tokens for both inputs and the output."""
    decoder = ModelConfig(
        vocabulary=37_000,
        layers=6,
        d_model=d_model,
        attention=Attention(heads=heads),
        feed_forward=Dense(d_ff=4 * d_model, activation="relu"),
        norm=POST,
        positions=Sinusoidal(),
        inputs=Tokens(scale_exponent=0.5),
        head=LanguageModel(tied=True),
        dropout=dropout,
    )
    return decoder.with_encoder(inputs=Tokens(scale_exponent=0.5, shared=True))


def _gpt2(layers: int, d_model: int, heads: int) -> ModelConfig:
    return ModelConfig(
        vocabulary=50_257,
        layers=layers,
        d_model=d_model,
        attention=Attention(heads=heads),
        feed_forward=Dense(d_ff=4 * d_model, activation="gelu_tanh"),
        norm=PRE,
        norm_kind=LayerNorm(epsilon=1e-5),
        positions=LearnedPositions(max_length=1024),
        inputs=Tokens(std=0.02),
        head=LanguageModel(tied=True),
        initializer=Normal(deviation=0.02),
        initial=(DEPTH_SCALED_OUTPUTS,),
        dropout=0.1,
    )


def _bert(layers: int, d_model: int, heads: int) -> ModelConfig:
    """An encoder with the head of its masked language model."""
    return ModelConfig(
        vocabulary=30_522,
        layers=layers,
        d_model=d_model,
        attention=Attention(heads=heads),
        feed_forward=Dense(d_ff=4 * d_model, activation="gelu"),
        norm=NormPlacement(post_residual=True, embedding=True),
        norm_kind=LayerNorm(epsilon=1e-12),
        positions=LearnedPositions(max_length=512),
        inputs=Tokens(token_types=2, std=0.02),
        head=LanguageModel(tied=True, bias=True, transform="gelu"),
        initializer=Normal(deviation=0.02),
        mask_pattern="bidirectional",
        dropout=0.1,
    )


def _t5(layers: int, d_model: int, heads: int, d_ff: int) -> ModelConfig:
    d_head = 64
    queries = Initial(weights=("blocks/*/attention/query",), factor=d_head**-0.5)
    cross_queries = Initial(weights=("blocks/*/cross_attention/query",), factor=d_head**-0.5)
    decoder = ModelConfig(
        vocabulary=32_128,
        layers=layers,
        d_model=d_model,
        attention=Attention(heads=heads, d_head=d_head, scale_exponent=0.0, bias=False, out_bias=False),
        feed_forward=Dense(d_ff=d_ff, activation="relu", bias=False),
        norm=PRE,
        norm_kind=RMSNorm(epsilon=1e-6),
        positions=RelativeBuckets(buckets=32, max_distance=128, std=d_model**-0.5),
        inputs=Tokens(std=1.0),
        head=LanguageModel(tied=True, scale_exponent=0.5),
        initializer=LeCun(),
        initial=(queries, cross_queries),
        dropout=0.1,
    )
    return decoder.with_encoder(inputs=Tokens(shared=True), initial=(queries,))


def _llama(
    layers: int, d_model: int, heads: int, d_ff: int, epsilon: float, key_value_heads: int | None = None
) -> ModelConfig:
    return ModelConfig(
        vocabulary=32_000,
        layers=layers,
        d_model=d_model,
        attention=Attention(heads=heads, key_value_heads=key_value_heads, bias=False, out_bias=False),
        feed_forward=Gated(d_ff=d_ff, activation="silu", bias=False),
        norm=PRE,
        norm_kind=RMSNorm(epsilon=epsilon),
        positions=Rotary(),
        inputs=Tokens(std=0.02),
        head=LanguageModel(),
        initializer=Normal(deviation=0.02),
    )


PUBLISHED = {
    "transformer-base": _transformer(512, 8, 0.1),
    "transformer-big": _transformer(1024, 16, 0.3),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "t5-small": _t5(6, 512, 8, 2048),
    "t5-base": _t5(12, 768, 12, 3072),
    "t5-large": _t5(24, 1024, 16, 4096),
    "llama-7b": _llama(32, 4096, 32, 11_008, 1e-6),
    "llama-13b": _llama(40, 5120, 40, 13_824, 1e-6),
    "llama-65b": _llama(80, 8192, 64, 22_016, 1e-5),
    "llama-2-70b": _llama(80, 8192, 64, 28_672, 1e-5, key_value_heads=8),
}
"""Configs by name."""
ModelConfig.named = PUBLISHED
