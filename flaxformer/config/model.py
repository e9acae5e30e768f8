"""ModelConfig: the Transformer as data.

To change an architecture choice, change one line of a config; to add a choice, write a class beside its alternatives,
in `flaxformer/parts/` or in a file of your own.
"""

from collections.abc import Iterator
from typing import Any, Optional

from jaxtyping import Array, Int

from flaxformer.component import Component
from flaxformer.config.block import Block
from flaxformer.config.problems import problems
from flaxformer.nn.masks import Causal, Mask, Prefix
from flaxformer.params import Spec
from flaxformer.parts.attention import Attention
from flaxformer.parts.feed_forward import Dense, FeedForward
from flaxformer.parts.heads import Head, LanguageModel, NoHead
from flaxformer.parts.initializers import Initializer, Xavier
from flaxformer.parts.inputs import Inputs, Tokens
from flaxformer.parts.mixers import TokenMixer
from flaxformer.parts.norms import PRE, LayerNorm, Norm, NormPlacement
from flaxformer.parts.positions import Positions, Sinusoidal
from flaxformer.parts.residuals import DeepNorm, Residual
from flaxformer.struct import Config, leaf, part, static


class ModelConfig(Config):
    """A Transformer: a decoder; an encoder, with mask_pattern="bidirectional"; or both, with an `encoder` to read.

    mask_pattern: the tokens that a token attends to: "causal", those before it; "prefix", those and all of a given
    prefix; "bidirectional", all (Raffel et al. 2020, figure 4).

    pattern: blocks that differ, cycled over the depth, such as three local attentions and a global one; empty for the
    same block in every layer.

    distinct_blocks: how many blocks have weights of their own; None for all. With fewer than layers, they are shared:
    sharing="loop" goes through them again and again, "group" repeats each in neighbouring layers.
    """

    vocabulary: int = static(256, at_least=1)
    inputs: Inputs = part(Tokens())
    layers: int = static(6, at_least=0)
    d_model: int = static(64, at_least=1)
    head: Head = part(LanguageModel())
    initializer: Initializer = part(Xavier())
    dropout: float | None = leaf(None, at_least=0, below=1)

    attention: TokenMixer = part(Attention())
    cross_attention: Attention | None = part(None)
    """Attention to a memory; None has the settings of `attention`."""
    feed_forward: FeedForward | None = part(Dense())
    positions: Positions = part(Sinusoidal())
    mask_pattern: str = static("causal", choices=("causal", "prefix", "bidirectional"))

    norm: NormPlacement = part(PRE)
    norm_kind: Norm = part(LayerNorm())
    residual: Residual = part(Residual())
    attention_residual: bool = static(True)
    cross_attention_residual: bool = static(True)
    feed_forward_residual: bool = static(True)
    parallel: bool = static(False)
    """True if attention and feed-forward read the same stream, side by side (GPT-J, PaLM)."""

    pattern: tuple[Block, ...] = part(())
    distinct_blocks: int | None = static(None, at_least=1)
    sharing: str = static("loop", choices=("loop", "group"))

    d_memory: int | None = static(None, at_least=1)
    """The width of a memory to attend to, which the caller gives; an `encoder` gives its own."""
    encoder: Optional["ModelConfig"] = part(None)

    def problems(self) -> Iterator[str]:
        return problems(self)

    def with_encoder(self, **changes: Any) -> "ModelConfig":
        """Return the encoder-decoder whose encoder is like this decoder, but bidirectional and with the changes."""
        residual = DeepNorm(decoder_layers=self.layers) if isinstance(self.residual, DeepNorm) else self.residual
        like = {"mask_pattern": "bidirectional", "head": NoHead(), "residual": residual}
        none = dict.fromkeys(("encoder", "d_memory", "cross_attention"))
        return self.replace(encoder=self.replace(**(like | none | changes)))

    @property
    def embedding(self) -> Inputs:
        """The inputs, with the defaults of a shared table where the head is tied."""
        return self.inputs.for_tied_head(self.d_model) if self.head.tied else self.inputs

    @property
    def reading_encoder(self) -> Any:
        """The encoder as it runs: a table that it shares with a tied decoder has the decoder's default scale."""
        encoder: Any = self.encoder
        table: Any = self.embedding
        given = self.inputs
        is_default = isinstance(table, Tokens) and isinstance(given, Tokens) and given.scale_exponent is None
        if encoder is None or not is_default or not getattr(encoder.inputs, "shared", False):
            return encoder
        if encoder.inputs.scale_exponent is not None:
            return encoder
        return encoder.replace(inputs=encoder.inputs.replace(scale_exponent=table.scale_exponent))

    def branches(self) -> Iterator[tuple[str, Component]]:
        """The residual branches of a block, in their order."""
        yield "attention", self.attention
        if self.reads_memory:
            yield "cross_attention", self.cross
        if self.feed_forward is not None:
            yield "feed_forward", self.feed_forward

    @property
    def cross(self) -> Any:
        """The cross-attention of a model that reads a memory; None of another."""
        return (self.cross_attention or self.attention) if self.reads_memory else None

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every named axis of the parameters."""
        own = {
            "layers": self.layers,
            "vocabulary": self.vocabulary,
            "d_embedding": self.d_model - self.positions.width,
            "d_model": self.d_model,
            "d_source": self.d_model,
            "d_norm": self.d_model,
            "max_length": self.positions.max_length or 0,
            "outputs": self.head.outputs(self.vocabulary),
            "d_transform": self.d_model,
            "d_memory": self.encoder.d_model if self.encoder else self.d_memory or 0,
        }
        blocks = [block.changes().get("attention") for block in reversed(self.pattern)]
        parts = (self.feed_forward, *blocks, self.attention)  # a position scheme may need the heads of any block
        return {name: size for one in parts if one is not None for name, size in one.sizes(own).items()} | own

    @property
    def blocks(self) -> int:
        """Blocks with weights of their own."""
        return self.distinct_blocks or self.layers

    def block_of_layer(self, layer: int) -> int:
        """The number of the block whose weights a layer has."""
        return layer % self.blocks if self.sharing == "loop" else layer * self.blocks // max(self.layers, 1)

    def block_config(self, number: int) -> "ModelConfig":
        """The model as a block of this number is declared: with the pattern's choices in place of its own."""
        if not self.pattern:
            return self
        own = self.pattern[number % len(self.pattern)].changes()
        return self.replace(pattern=(), distinct_blocks=None, **own)

    @property
    def block_configs(self) -> tuple["ModelConfig", ...]:
        """`block_config` of every block with weights of its own."""
        period = tuple(self.block_config(number) for number in range(len(self.pattern))) or (self,)
        return tuple(period[number % len(period)] for number in range(self.blocks))

    @property
    def layer_configs(self) -> tuple["ModelConfig", ...]:
        """`block_config` of every layer."""
        own = self.block_configs
        return tuple(own[self.block_of_layer(layer)] for layer in range(self.layers))

    @property
    def period(self) -> int:
        """Layers after which the pattern of block configs begins again; a divisor of the depth."""
        of = [self.block_of_layer(layer) % max(1, len(self.pattern)) for layer in range(self.layers)]
        sizes = [size for size in range(1, self.layers + 1) if self.layers % size == 0]
        return next((size for size in sizes if of == of[:size] * (self.layers // size)), 1)

    # Norms by place, as the declarations of weights name them.
    pre_norm = property(lambda self: self.norm.at("pre", self.norm_kind))
    post_branch_norm = property(lambda self: self.norm.at("post_branch", self.norm_kind))
    post_residual_norm = property(lambda self: self.norm.at("post_residual", self.norm_kind))
    embedding_norm = property(lambda self: self.norm.at("embedding", self.norm_kind))
    final_norm = property(lambda self: self.norm.at("final", self.norm_kind))

    @property
    def norms(self) -> tuple[Norm, ...]:
        """Every norm that the model has, by place."""
        own_blocks = [self.block_config(number) for number in range(max(1, len(self.pattern)))]
        places = [(own.pre_norm, own.post_branch_norm, own.post_residual_norm) for own in own_blocks]
        found = [norm for own in places for norm in own] + [self.embedding_norm, self.final_norm]
        found += [self.norm_kind] if getattr(self.head, "transform", None) is not None else []
        return tuple(norm for norm in found if norm is not None)

    @property
    def batch_mixers(self) -> tuple[Component, ...]:
        """The norms and branches that need the whole batch in training."""
        own_blocks = [self.block_config(number) for number in range(max(1, len(self.pattern)))]
        branches = [branch for own in own_blocks for _, branch in own.branches()]
        return tuple(one for one in (*self.norms, *branches) if one.mixes_batch)

    @property
    def mixes_batch(self) -> bool:
        """True if a sequence's result depends on others of its batch in training."""
        return bool(self.batch_mixers)

    @property
    def is_causal(self) -> bool:
        """True if no token's result depends on later ones, but for a prefix."""
        return self.mask_pattern != "bidirectional" and all(norm.is_causal for norm in self.norms)

    @property
    def reads_memory(self) -> bool:
        """True if its blocks have cross-attention."""
        return self.encoder is not None or self.d_memory is not None

    @property
    def mixers(self) -> dict[str, TokenMixer]:
        """The token mixers, by the path of their field."""
        own = {f"pattern.{n}.attention": self.block_config(n).attention for n in range(len(self.pattern))}
        return own or {"attention": self.attention}

    @property
    def mixers_without_mask(self) -> dict[str, TokenMixer]:
        """The token mixers that read no mask, by the path of their field."""
        return {path: mixer for path, mixer in self.mixers.items() if not mixer.reads_mask}

    @property
    def mixers_without_state(self) -> dict[str, TokenMixer]:
        """The token mixers of a causal model that have no decoding state, by the path of their field."""
        return {path: mixer for path, mixer in self.mixers.items() if self.is_causal and not mixer.has_state}

    @property
    def max_length(self) -> int | None:
        """The longest sequence that it can read, where there is one."""
        own = [self.positions.max_length, *(block.attention.max_length for block in self.block_configs)]
        limits = [length for length in own if length is not None]
        return min(limits) if limits else None

    @property
    def initial_std(self) -> Any:
        """Standard deviation of a random weight's initial values, by its declaration."""

        def std(spec: Spec) -> float | Array:
            gain = self.residual.branch_gain(self.layers, self.reads_memory) if spec.init == "branch" else 1.0
            return self.initializer.std(spec) * gain if gain != 1.0 else self.initializer.std(spec)

        return std

    def mask(self, *, prefix: Int[Array, "*batch"] | None = None, offset: int | Int[Array, ""] = 0) -> Mask | None:
        """Which tokens a token may attend to, by the architecture; data adds its padding, an attention its window.

        Args:
          prefix: tokens at the start of each sequence that every token sees, where mask_pattern is "prefix".
          offset: keys before the first query (a decoding state).
        """
        if self.mask_pattern == "bidirectional":
            return None
        if self.mask_pattern == "prefix" and prefix is not None:
            return Causal(offset) | Prefix(prefix)
        return Causal(offset)
