"""Arms of the catalog's studies: every mechanism of `flaxformer.catalog`, and the choices of the core, by family.

An arm is what it changes of the baseline: a pre-norm decoder with LayerNorm, a dense ReLU network, rotary positions,
untied embeddings, Xavier's initial weights, and AdamW with a linear decay. Sizes that a mechanism has by default are
those of its paper's models; `SIZES` has those that fit a width of 64, four layers and 64 tokens, such that the number
of weights or of multiplications per token stays near the baseline's where the mechanism leaves a choice.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from flaxformer import (
    DEPTH_SCALED_OUTPUTS,
    LSTM,
    NO_NORM,
    POST,
    RES_POST_NORM,
    SANDWICH,
    Adafactor,
    Adopt,
    Alibi,
    BatchNorm,
    Block,
    Constant,
    Cosine,
    DeepNorm,
    Gated,
    InverseSqrt,
    LanguageModel,
    LayerNorm,
    LayerScale,
    LearnedPositions,
    LeCun,
    Lion,
    Muon,
    NoPositions,
    Normal,
    RelativeBuckets,
    ReZero,
    RMSNorm,
    ScheduleFree,
    Sinusoidal,
)
from flaxformer.catalog import EngramNetwork, mechanisms, variants

Changes = Mapping[str, object]
"""Value at each path of the baseline."""


def _activations(*names: str) -> dict[str, Changes]:
    return {name: {"model.feed_forward.activation": name} for name in names}


def _gated(**activations: str) -> dict[str, Changes]:
    """Gated networks with two thirds of the hidden width, and so as many weights."""
    return {
        name: {"model.feed_forward": Gated(activation=activation), "model.feed_forward.d_ff": 128}
        for name, activation in activations.items()
    }


CORE: Mapping[str, Mapping[str, Changes]] = {
    "attention": {
        "one key-value head": {"model.attention.key_value_heads": 1},
        "1 head": {"model.attention.heads": 1},
        "8 heads": {"model.attention.heads": 8},
        "window of 16": {"model.attention.window": 16},
        "query-key norm": {"model.attention.query_key_norm": RMSNorm()},
        "logit cap 30": {"model.attention.logit_cap": 30.0},
        "logits not divided by √d": {"model.attention.scale_exponent": 0.0},
        "logits divided by d": {"model.attention.scale_exponent": 1.0},
        "one matrix for queries and keys": {"model.attention.share_query_key": True},
        "no biases": {"model.attention.bias": False, "model.attention.out_bias": False},
    },
    "positions": {
        "no positions": {"model.positions": NoPositions()},
        "sinusoidal": {"model.positions": Sinusoidal()},
        "learned": {"model.positions": LearnedPositions(max_length=64)},
        "ALiBi": {"model.positions": Alibi()},
        "relative buckets": {"model.positions": RelativeBuckets()},
    },
    "token mixers": {"LSTM": {"model.attention": LSTM()}},
    "feed-forward": {
        **_activations("gelu", "silu", "elu", "selu", "softplus", "sigmoid", "squared_relu"),
        **_gated(GLU="sigmoid", GeGLU="gelu", ReGLU="relu", SwiGLU="silu", LiGLU="linear"),
        "no feed-forward": {"model.feed_forward": None},
        "twice as wide": {"model.feed_forward.d_ff": 384},
    },
    "norms": {
        "RMSNorm": {"model.norm_kind": RMSNorm()},
        "LayerNorm without gain and bias": {"model.norm_kind": LayerNorm(affine="none")},
        "batch norm": {"model.norm_kind": BatchNorm()},
        "post-norm": {"model.norm": POST},
        "norm of the update": {"model.norm": RES_POST_NORM},
        "norm before and after": {"model.norm": SANDWICH},
    },
    "residuals and depth": {
        "ReZero": {"model.norm": NO_NORM, "model.residual": ReZero()},
        "ReZero and LayerNorm": {"model.residual": ReZero()},
        "ReZero and RMSNorm": {"model.residual": ReZero(), "model.norm_kind": RMSNorm()},
        "LayerScale": {"model.residual": LayerScale()},
        "DeepNorm": {"model.norm": POST, "model.residual": DeepNorm()},
        "parallel branches": {"model.parallel": True},
        "all layers share weights": {"model.distinct_blocks": 1},
        "2 layers": {"model.layers": 2, "model.feed_forward.d_ff": 512},
        "6 layers": {"model.layers": 6, "model.feed_forward.d_ff": 85},
    },
    "embeddings and heads": {"tied input and output": {"model.head": LanguageModel(tied=True)}},
    "optimizers": {
        "Lion": {"optimizer": Lion},
        "Muon": {"optimizer": Muon},
        "schedule-free AdamW": {"optimizer": ScheduleFree},
        "ADOPT": {"optimizer": Adopt},
        "Adafactor": {"optimizer": Adafactor},
        "no weight decay": {"optimizer.weight_decay": 0.0},
    },
    "schedules": {
        "constant": {"optimizer.decay": Constant()},
        "cosine": {"optimizer.decay": Cosine()},
        "inverse square root": {"optimizer.decay": InverseSqrt()},
        "no warm-up": {"optimizer.warmup_steps": 0.0},
    },
    "initialisation": {
        "LeCun": {"model.initializer": LeCun()},
        "normal of deviation 0.02": {"model.initializer": Normal(deviation=0.02)},
        "outputs / √(2 L)": {"model.initial": (DEPTH_SCALED_OUTPUTS,)},
    },
}
"""Choices of the core by family."""

SIZES: Mapping[str, Changes] = {
    "Based": {"model.attention.d_key": 8},
    "bigram embedding": {"model.feed_forward.rows": 1024},
    "block selection": {"model.attention.block": 8, "model.attention.selected": 3},
    "DeepSeek sparse": {
        "model.attention.selected": 16,
        "model.attention.index_heads": 4,
        "model.attention.index_width": 16,
    },
    "clipped experts": {"model.feed_forward.d_ff": 64},
    "Engram": {
        "model.pattern": (Block(), Block(feed_forward=EngramNetwork(d_ff=192, hashes=2, rows=509, slot=16))),
    },
    "experts": {"model.feed_forward.d_ff": 96},
    "gated norm": {"model.norm_kind.rank": 4},
    "latent experts": {"model.feed_forward.d_ff": 176},
    "2 of 8, biased": {"model.feed_forward.d_ff": 96},
    "1 shared, 1 of 7": {"model.feed_forward.d_ff": 96},
    "capacity 2": {"model.feed_forward.d_ff": 96},
    "capacity 1.25": {"model.feed_forward.d_ff": 192},
    "fire": {"model.positions.initial_length": 64.0},
    "Hyena": {"model.attention.length": 64, "model.attention.hidden": 16},
    "Mamba": {"model.attention.expansion": 1},
    "Mamba-2": {"model.attention.expansion": 1, "model.attention.d_state": 16},
    "Mamba-3": {"model.attention.expansion": 1, "model.attention.d_state": 16},
    "native sparse attention": {
        "model.attention.block": 8,
        "model.attention.selected": 4,
        "model.attention.local": 16,
    },
    "PaTH": {"model.attention.rank": 8},
    "RWKV-7": {
        "model.attention.decay_rank": 8,
        "model.attention.rate_rank": 8,
        "model.attention.mix_rank": 8,
        "model.attention.gate_rank": 16,
    },
    "dense synthesizer": {"model.attention.length": 64},
    "random synthesizer": {"model.attention.length": 64},
    "fixed random synthesizer": {"model.attention.length": 64},
    "factorised random synthesizer": {"model.attention.length": 64},
    "rank 128": {"model.inputs.rank": 16},
    "1 Mamba, 1 window": {"model.attention.window": 16},
}
"""Sizes of mechanisms at a width of 64 and a length of 64, by the label of the variant."""

LABELS: Mapping[str, str] = {
    "experts": "2 of 8 experts",
    "2 of 8, biased": "2 of 8 experts balanced by biases",
    "1 shared, 1 of 7": "1 shared and 1 of 7 experts",
    "capacity 2": "expert choice",
    "capacity 1.25": "Switch with 1 of 8 experts",
    "32² values": "product-key memory",
    "rank 128": "factorised of rank 16",
    "4 tokens": "4 predicted tokens",
    "4 streams": "hyper-connections",
    "4 dynamic streams": "dynamic hyper-connections",
    "4 constrained streams": "mHC",
    "sigmoid": "sigmoid attention",
    "survival 1/2": "stochastic depth",
    "an eighth of the tokens": "mixture of depths",
    "halting": "adaptive computation",
    "pairs of layers": "cross-layer keys and values",
}
"""Labels that say more beside those of other mechanisms than the catalog's."""

LEFT_OUT: dict[str, str] = {
    "fill_in_the_middle": "its loss is of other tokens in another order; it is not the loss of the text",
    "masked_diffusion": "its loss is a bound of the text's, and that of the baseline is exact",
    "adaptive_softmax": "its bands are of rare words; bytes are 256, and not sorted by frequency",
}
LEFT_OUT |= {
    module: "it is a task, and no change of a model"
    for module, mechanism in mechanisms().items()
    if mechanism.family == "tasks"
}
"""Mechanisms of the catalog that are not compared here, with the reason."""

RATES: Mapping[str, float] = {"Lion": 0.1, "Kron": 0.3, "Prodigy": 100.0}
"""Middle of the tried learning rates of an arm, in units of the baseline's, where it is another."""

EXPERTS = "experts"
"""Family of the networks with experts, whose arms have the baseline's steps and multiplications per token, if a token's
own experts are counted alone; the programs here compute all experts."""
ROUTED = (
    "mixture_of_experts",
    "clipped_experts",
    "loss_free_balancing",
    "shared_expert",
    "expert_choice",
    "latent_experts",
    "switch_routing",
)
"""Mechanisms of that family."""


def _variants() -> Iterator[tuple[str, str, str, Changes]]:
    """Yield the module, the family, the label and the changes of every variant of the catalog."""
    for module, mechanism in mechanisms().items():
        if module not in LEFT_OUT:
            family = EXPERTS if module in ROUTED else mechanism.family
            for label, changes in variants(module).items():
                yield module, family, LABELS.get(label, label.replace(",", "")), {**changes, **SIZES.get(label, {})}


def arms_by_family() -> dict[str, dict[str, Changes]]:
    """Return the arms of each family by their labels, without the baseline."""
    families: dict[str, dict[str, Changes]] = {family: dict(arms) for family, arms in CORE.items()}
    for _, family, label, changes in _variants():
        families.setdefault(family, {})[label] = changes
    return families


def module_of_arms() -> dict[str, str]:
    """Return the module of the catalog of each arm that has one, by the arm's label."""
    return {label: module for module, _, label, _ in _variants()}


NARANG: Mapping[str, tuple[str, float, float]] = MappingProxyType(
    {
        "gelu": ("GeLU", 2.179, 0.003),
        "silu": ("Swish", 2.186, 0.003),
        "elu": ("ELU", 2.270, 0.007),
        "GLU": ("GLU", 2.174, 0.003),
        "GeGLU": ("GeGLU", 2.130, 0.006),
        "ReGLU": ("ReGLU", 2.145, 0.004),
        "selu": ("SeLU", 2.315, 0.004),
        "SwiGLU": ("SwiGLU", 2.127, 0.003),
        "LiGLU": ("LiGLU", 2.149, 0.005),
        "sigmoid": ("Sigmoid", 2.291, 0.019),
        "softplus": ("Softplus", 2.207, 0.011),
        "RMSNorm": ("RMS Norm", 2.167, 0.008),
        "ReZero": ("Rezero", 2.262, 0.003),
        "ReZero and LayerNorm": ("Rezero + LayerNorm", 2.223, 0.006),
        "ReZero and RMSNorm": ("Rezero + RMS Norm", 2.221, 0.009),
        "Fixup": ("Fixup", 2.382, 0.012),
        "2 layers": ("6 layers, d_ff 6144", 2.201, 0.010),
        "6 layers": ("18 layers, d_ff 2048", 2.185, 0.005),
        "all layers share weights": ("Block sharing", 2.497, 0.037),
        "factorised of rank 16": ("Factorized embedding", 2.208, 0.006),
        "tied input and output": ("Vanilla Transformer", 2.182, 0.005),
        "4 softmaxes": ("Mixture of softmaxes", 2.227, 0.017),
        "dynamic convolution": ("Dynamic convolution", 2.403, 0.009),
        "lightweight convolution": ("Lightweight convolution", 2.370, 0.009),
        "dense synthesizer": ("Synthesizer (dense)", 2.334, 0.021),
        "random synthesizer": ("Synthesizer (random)", 2.326, 0.012),
        "factorised random synthesizer": ("Synthesizer (factorized)", 2.341, 0.017),
        "2 of 8 experts": ("Mixture of experts", 2.148, 0.006),
        "Switch with 1 of 8 experts": ("Switch Transformer", 2.135, 0.007),
        "product-key memory": ("Product key memory", 2.155, 0.003),
    }
)
"""Row of Narang et al. 2021, table 1 (arXiv:2102.11972), of an arm: its name, its loss after 65,536 steps, and the
standard deviation."""
NARANG_VANILLA = (2.182, 0.005)
"""Loss and standard deviation of their vanilla Transformer, which has one matrix for all embeddings."""
NARANG_BASELINE: Mapping[str, tuple[float, float]] = MappingProxyType({"tied input and output": (2.192, 0.002)})
"""Loss and standard deviation of another row, of which that of the arm is a change: "Tied encoder/decoder input
embeddings", whose output matrix is another, as the baseline's is here."""
