"""ModelConfig: the Transformer as data.

To change an architecture choice, change one line of a config; to add a choice, add a row to the table beside its
mathematics (`ACTIVATIONS`), a constant (`PRE`, `POST`), or a small class beside its alternatives (`Rotary`).
"""

from collections.abc import Iterator
from typing import Any, Optional

from jaxtyping import Array, Int

from flaxformer.config.base import SequenceModel
from flaxformer.config.heads import LanguageModel, NoHead
from flaxformer.config.inputs import Tokens
from flaxformer.config.norms import PRE, BatchNorm, LayerNorm, NormSlots, RMSNorm
from flaxformer.config.positions import (
    Alibi,
    ConcatenatedIndex,
    LearnedPositions,
    NoPositions,
    RelativeBuckets,
    Rotary,
    Sinusoidal,
)
from flaxformer.config.residuals import DeepNorm, LayerScale, Residual, ReZero
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.masks import Causal, Mask, Prefix, Window
from flaxformer.params import Spec
from flaxformer.struct import leaf, part, static

AnyPositions = NoPositions | Sinusoidal | LearnedPositions | ConcatenatedIndex | Rotary | Alibi | RelativeBuckets


class ModelConfig(SequenceModel):
    """A Transformer: a decoder as it stands; an encoder with visibility="full"; both, with an `encoder` to read.

    visibility: what a token sees of the others: "causal", those before it; "prefix", those and all of a given
    prefix; "full", all (Raffel et al. 2020, figure 4).

    The logit scale is width ** −logit_scale_exponent: exponent 0 is unscaled, ½ is 1/√d, 1 is 1/d, and
    `logit_scale_width` says whether d is the width of a head (the truth of Vaswani et al.) or of the model.

    value_form: "factored", heads of width d_value, concatenated and mapped by W_O; or "full",
    Y = Σ_h A_h X V_h with V_h of D × D ("An Introduction to Transformers", the multi-head self-attention layer).

    frozen_pattern: attention by fixed random weights over that many places at most, which no input changes.
    """

    heads: int = static(4, at_least=1)
    key_value_heads: int | None = static(None, at_least=1)
    d_head: int | None = static(None, at_least=1)
    d_value: int | None = static(None, at_least=1)
    d_ff: int | None = static(None, at_least=1)
    """None is four times the model's width."""
    d_memory: int | None = static(None, at_least=1)
    """The width of a memory to attend to, which the caller gives; an `encoder` gives its own."""
    encoder: Optional["ModelConfig"] = part(None)

    norm: NormSlots = part(PRE)
    norm_kind: LayerNorm | RMSNorm | BatchNorm = part(LayerNorm())  # type: ignore[misc]
    residual: Residual | ReZero | LayerScale | DeepNorm = part(Residual())
    attention_residual: bool = static(True)
    memory_residual: bool = static(True)
    feed_forward_residual: bool = static(True)
    parallel: bool = static(False)
    """Whether attention and feed-forward read the same stream, side by side (GPT-J, PaLM)."""

    positions: AnyPositions = part(Sinusoidal())  # type: ignore[misc]
    visibility: str = static("causal", choices=("causal", "prefix", "full"))
    window: int | None = leaf(None, at_least=1)

    logit_scale_exponent: float = leaf(0.5)
    logit_scale_width: str = static("head", choices=("head", "model"))
    logit_cap: float | None = leaf(None, above=0)
    query_key_norm: LayerNorm | RMSNorm | None = part(None)
    share_query_key: bool = static(False)
    value_form: str = static("factored", choices=("factored", "full"))
    frozen_pattern: int | None = static(None, at_least=1)
    query_key_value_bias: bool = static(True)
    out_bias: bool = static(True)

    feed_forward: str = static("dense", choices=("none", "dense", "gated"))
    activation: str = static("relu", choices=ACTIVATIONS)  # type: ignore[misc]
    feed_forward_bias: bool = static(True)

    def problems(self) -> Iterator[str]:
        heads, d_model = self.heads, self.d_model
        if self.d_head is None and d_model % heads:
            yield f"heads is {heads}; expected a divisor of d_model {d_model}, or d_head to be given"
        if heads % (self.key_value_heads or heads):
            yield f"key_value_heads is {self.key_value_heads}; expected a divisor of heads {heads}"
        if self.share_query_key and self.key_value_heads not in (None, heads):
            yield f"share_query_key is True with key_value_heads {self.key_value_heads}; expected {heads}, as heads"
        if self.share_query_key and self.d_memory is not None and self.d_memory != d_model:
            yield f"share_query_key is True with d_memory {self.d_memory}; expected d_model {d_model}"
        if self.value_form == "full" and self.d_value not in (None, d_model):
            yield f'd_value is {self.d_value} with value_form "full"; expected None or d_model {d_model}'
        if isinstance(self.positions, Rotary) and self.sizes["d_head"] % 2:
            yield f"the width of a head is {self.sizes['d_head']}; expected an even number, for Rotary turns pairs"
        if self.head.tied and not (isinstance(self.inputs, Tokens) and not self.positions.width):
            yield "head.tied is True; expected inputs Tokens and an embedding of the model's width to share"
        if self.query_key_norm is not None and self.query_key_norm.leaks:
            yield 'query_key_norm.over is "sequence"; expected "token"'
        if isinstance(self.inputs, Tokens) and self.inputs.shared and not isinstance(self.head, NoHead):
            yield "inputs.shared is True; expected this of an encoder with NoHead(), which reads its decoder's table"
        if self.frozen_pattern is not None and self.reads_memory:
            yield f"frozen_pattern is {self.frozen_pattern} in a model that reads a memory; expected None there"
        if self.encoder is not None:
            yield from self._encoder_problems(self.encoder)

    def _encoder_problems(self, encoder: "ModelConfig") -> Iterator[str]:
        if not isinstance(encoder.head, NoHead):
            yield f"encoder.head is {encoder.head}; expected NoHead()"
        if encoder.reads_memory:
            yield "encoder has a memory of its own; expected none"
        if self.d_memory not in (None, encoder.d_model):
            yield f"d_memory is {self.d_memory}; expected None or the encoder's d_model {encoder.d_model}"
        if self.share_query_key and encoder.d_model != self.d_model:
            yield f"share_query_key is True with encoder.d_model {encoder.d_model}; expected d_model {self.d_model}"
        shared = isinstance(encoder.inputs, Tokens) and encoder.inputs.shared
        table = encoder.vocabulary, encoder.sizes["d_embedding"]
        own = self.vocabulary, self.sizes["d_embedding"]
        if shared and (not isinstance(self.inputs, Tokens) or table != own):
            yield f"encoder.inputs.shared is True for a table of {table}; the decoder's is of {own}"
        if isinstance(encoder.residual, DeepNorm) and encoder.residual.decoder_layers != self.layers:
            told = encoder.residual.decoder_layers
            yield f"encoder.residual.decoder_layers is {told}; expected the decoder's layers, {self.layers}"

    def with_encoder(self, **changes: Any) -> "ModelConfig":
        """The encoder-decoder whose encoder is like this decoder, but for its full visibility and the changes."""
        residual = DeepNorm(decoder_layers=self.layers) if isinstance(self.residual, DeepNorm) else self.residual
        like = {"visibility": "full", "head": NoHead(), "encoder": None, "d_memory": None, "residual": residual}
        return self.replace(encoder=self.replace(**(like | changes)))

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every named axis of the parameters."""
        d_head = self.d_head or self.d_model // self.heads
        buckets = self.positions.buckets if isinstance(self.positions, RelativeBuckets) else 0
        return super().sizes | {
            "heads": self.heads,
            "key_value_heads": self.key_value_heads or self.heads,
            "d_head": d_head,
            "d_value": self.d_model if self.value_form == "full" else self.d_value or d_head,
            "d_ff": self.d_ff or 4 * self.d_model,
            "d_memory": self.encoder.d_model if self.encoder else self.d_memory or 0,
            "buckets": buckets,
            "pattern": self.frozen_pattern or 0,
        }

    has_feed_forward = property(lambda self: self.feed_forward != "none")
    has_gate = property(lambda self: self.feed_forward == "gated")
    has_out = property(lambda self: self.value_form == "factored")
    has_query = property(lambda self: self.frozen_pattern is None)
    has_key = property(lambda self: self.has_query and not self.share_query_key)
    has_query_bias = property(lambda self: self.has_query and self.query_key_value_bias)
    has_key_bias = property(lambda self: self.has_key and self.query_key_value_bias)
    has_query_norm = property(lambda self: self.has_query and self.query_key_norm is not None)
    has_key_norm = property(lambda self: self.has_key and self.query_key_norm is not None)
    has_gate_bias = property(lambda self: self.has_gate and self.feed_forward_bias)
    has_query_key_gain = property(lambda self: self.query_key_norm is not None and self.query_key_norm.has_gain)
    has_query_key_bias = property(lambda self: self.query_key_norm is not None and self.query_key_norm.has_bias)

    @property
    def reads_memory(self) -> bool:
        """Whether its blocks have cross-attention."""
        return self.encoder is not None or self.d_memory is not None

    @property
    def max_length(self) -> int | None:
        limits = [n for n in (self.positions.max_length, self.frozen_pattern) if n is not None]
        return min(limits) if limits else None

    @property
    def initial_constants(self) -> dict[str, float | Array]:
        return super().initial_constants | {"residual_gain": self.residual.initial}

    def initial_std(self, spec: Spec) -> float | Array:
        if spec.init == "pattern":
            return 1.0
        std = super().initial_std(spec)
        return std * self.residual.branch_gain(self.layers, self.reads_memory) if spec.init == "branch" else std

    def mask(
        self,
        *,
        prefix: Int[Array, "*batch"] | None = None,
        offset: int | Int[Array, ""] = 0,
        query_positions: Int[Array, "*batch T"] | None = None,
        key_positions: Int[Array, "*batch S"] | None = None,
    ) -> Mask | None:
        """Which tokens a token may attend to, by the architecture; data adds its padding.

        Args:
          prefix: tokens at the start of each sequence that every token sees, where visibility is "prefix".
          offset: keys before the first query (a cache).
          query_positions, key_positions: positions between which a window measures; None counts from 0.
        """
        mask: Mask | None = None if self.visibility == "full" else Causal(offset)
        if self.visibility == "prefix" and prefix is not None:
            mask = Causal(offset) | Prefix(prefix)
        return mask if self.window is None else Window(self.window, query_positions, key_positions) & mask


LanguageModel.named = {"tied": LanguageModel(tied=True)}
