"""Configuration of a Transformer.

To add an alternative to a component, define a subclass of its base class in `flaxformer/components/` or in a file of
your own.
"""

from collections.abc import Iterator
from typing import Any, Optional

from jaxtyping import Array, Int

from flaxformer.components.attention import Attention
from flaxformer.components.branch import Branch, TokenMixer
from flaxformer.components.component import Component
from flaxformer.components.feed_forward import Dense, FeedForward
from flaxformer.components.heads import Head, LanguageModel, NoHead
from flaxformer.components.initializers import Initializer, Xavier
from flaxformer.components.inputs import Inputs, Tokens
from flaxformer.components.norms import PRE, LayerNorm, Norm, NormPlacement
from flaxformer.components.parametrizations import Parametrization
from flaxformer.components.positions import Positions, Sinusoidal
from flaxformer.components.residuals import DeepNorm, Residual
from flaxformer.config.block import Block, without_classes
from flaxformer.config.initial import Initial, drawn_by
from flaxformer.config.problems import problems
from flaxformer.core.params import Spec
from flaxformer.core.struct import Config, leaf, part, static
from flaxformer.core.weight_specs import InitialValue
from flaxformer.nn.masks import Causal, Mask, Prefix


class ModelConfig(Config):
    """A Transformer decoder; an encoder, with mask_pattern="bidirectional"; or both, with an `encoder`.

    inputs: the embedding; head: the output and its loss; initializer: the initial values of matrices.
    initial: other initial values of some weights, such as ZERO_OUTPUTS; of several that match, the first.
    parametrization: how initial scales and learning rates change with the width and the depth.
    checkpoint: what `flaxformer.interop.load` read beside the architecture, such as ids of special tokens and names of
      labels, as JSON, for `save`; it changes no number.
    dropout: rate after the embedding and on each branch's update; None for no dropout.
    attention, feed_forward: the branches of each block; feed_forward=None for no such branch.
    mask_pattern: the tokens that a token attends to: "causal", itself and those before it; "prefix", these and all of a
        given prefix; "bidirectional", all (Raffel et al. 2020, figure 4).
    norm, norm_kind: placement of the norms, and the norm at these places.
    residual: the rule that adds the update of a branch to the residual stream.
    attention_residual, cross_attention_residual, feed_forward_residual: False removes the skip connection.
    pattern: blocks that differ, repeated over the depth, such as three with local attention and one with global; empty
        if all layers have the same block.
    distinct_blocks: number of blocks with weights of their own; None for all layers. If smaller than `layers`, weights
        are shared: with sharing="loop", the sequence of blocks is repeated; with "group", each block in turn.
    """

    vocabulary: int = static(256, at_least=1)
    inputs: Inputs = part(Tokens())
    layers: int = static(6, at_least=0, at_most=100_000)
    d_model: int = static(64, at_least=1)
    head: Head = part(LanguageModel())
    initializer: Initializer = part(Xavier())
    initial: tuple[Initial, ...] = part((), omit_default=True)
    dropout: float | None = leaf(None, at_least=0, below=1)

    attention: TokenMixer = part(Attention())
    cross_attention: Attention | None = part(None)
    """Attention to an encoder or memory; None for the settings of `attention`."""
    feed_forward: FeedForward | None = part(Dense())
    positions: Positions = part(Sinusoidal())
    attention_positions: Positions | None = part(None, omit_default=True)
    """Position scheme of self-attention alone; None for `positions`."""
    mask_pattern: str = static("causal", choices=("causal", "prefix", "bidirectional"))

    norm: NormPlacement = part(PRE)
    norm_kind: Norm = part(LayerNorm())
    attention_norm: NormPlacement | None = part(None, omit_default=True)
    """Placement of the norms of self-attention alone, without `embedding` and `final`; None for `norm`."""
    residual: Residual = part(Residual())
    attention_residual: bool = static(True)
    cross_attention_residual: bool = static(True)
    feed_forward_residual: bool = static(True)
    parallel: bool = static(False)
    """True if attention and feed-forward have the same input (GPT-J, PaLM)."""

    pattern: tuple[Block, ...] = part(())
    distinct_blocks: int | None = static(None, at_least=1)
    sharing: str = static("loop", choices=("loop", "group"))

    d_memory: int | None = static(None, at_least=1)
    """Width of a memory that the caller gives, for cross-attention without an `encoder`."""
    encoder: Optional["ModelConfig"] = part(None)
    parametrization: Parametrization = part(Parametrization(), omit_default=True)
    checkpoint: str = static("", omit_default=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", without_classes(self.pattern, self))
        super().__post_init__()

    def problems(self) -> Iterator[str]:
        return problems(self)

    def with_encoder(self, **changes: object) -> "ModelConfig":
        """Return an encoder-decoder; its encoder is a bidirectional copy of this decoder with the given changes.

        If the decoder's mixer reads no mask, so that it cannot be bidirectional, that of the encoder is
        `cross_attention`.
        """
        residual = DeepNorm(decoder_layers=self.layers) if isinstance(self.residual, DeepNorm) else self.residual
        like = {"mask_pattern": "bidirectional", "head": NoHead(), "residual": residual}
        if not self.attention.reads_mask and self.cross_attention is not None:
            like["attention"] = self.cross_attention
        none = dict.fromkeys(("encoder", "d_memory", "cross_attention"))
        return self.replace(encoder=self.replace(**(like | none | changes)))

    @property
    def embedding(self) -> Inputs:
        """Inputs, with the default scales of a shared table if the head is tied."""
        return self.inputs.for_tied_head(self.d_model) if self.head.tied else self.inputs

    @property
    def resolved_encoder(self) -> Optional["ModelConfig"]:
        """Encoder; if it shares the table of a tied decoder, with the decoder's default scale."""
        encoder, table, inputs = self.encoder, self.embedding, self.inputs
        if encoder is None or not (isinstance(table, Tokens) and isinstance(inputs, Tokens)):
            return encoder
        other = encoder.inputs
        if isinstance(other, Tokens) and other.shared and inputs.scale_exponent is other.scale_exponent is None:
            return encoder.replace(inputs=other.replace(scale_exponent=table.scale_exponent))
        return encoder

    @property
    def attention_scheme(self) -> Positions:
        """Position scheme of self-attention."""
        return self.attention_positions or self.positions

    def branches(self) -> Iterator[tuple[str, Branch]]:
        """Yield the residual branches of a block in order, with their names."""
        yield "attention", self.attention
        if self.reads_memory:
            yield "cross_attention", self.cross
        if self.feed_forward is not None:
            yield "feed_forward", self.feed_forward

    def branch_config(self, name: str) -> "ModelConfig":
        """Return the config with the norms of the branch of this name in place of those of the block."""
        norm = self.attention_norm if name == "attention" else None
        return self if norm is None else self.replace(norm=norm, attention_norm=None)

    @property
    def cross(self) -> Any:
        """Cross-attention; None in a model without it."""
        return (self.cross_attention or self.attention) if self.reads_memory else None

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every named axis of the weights."""
        sizes = {
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
        branches = (self.feed_forward, *blocks, self.attention)  # a position scheme may need the heads of any block
        components = (component for component in branches if component is not None)
        return {name: size for component in components for name, size in component.axis_sizes(sizes).items()} | sizes

    @property
    def blocks(self) -> int:
        """Number of blocks with weights of their own."""
        return self.distinct_blocks or self.layers

    def block_of_layer(self, layer: int) -> int:
        """Return the number of the block whose weights a layer has."""
        return layer % self.blocks if self.sharing == "loop" else layer * self.blocks // max(self.layers, 1)

    def block_config(self, number: int) -> "ModelConfig":
        """Return the config with the fields that the pattern gives for the block of this number."""
        if not self.pattern:
            return self
        changes = self.pattern[number % len(self.pattern)].changes()
        return self.replace(pattern=(), distinct_blocks=None, **changes)

    @property
    def _period(self) -> tuple["ModelConfig", ...]:
        """`block_config` of each block of the pattern."""
        return tuple(self.block_config(number) for number in range(max(1, len(self.pattern))))

    @property
    def block_configs(self) -> tuple["ModelConfig", ...]:
        """`block_config` of each block with weights of its own."""
        period = self._period
        return tuple(period[number % len(period)] for number in range(self.blocks))

    @property
    def layer_configs(self) -> tuple["ModelConfig", ...]:
        """`block_config` of each layer."""
        block_configs = self.block_configs
        return tuple(block_configs[self.block_of_layer(layer)] for layer in range(self.layers))

    @property
    def period(self) -> int:
        """Number of layers after which the sequence of block configs repeats; a divisor of `layers`."""
        numbers = [self.block_of_layer(layer) % max(1, len(self.pattern)) for layer in range(self.layers)]
        sizes = [size for size in range(1, self.layers + 1) if self.layers % size == 0]
        return next((size for size in sizes if numbers == numbers[:size] * (self.layers // size)), 1)

    # Norms by place; the declarations of weights refer to these names.
    pre_norm = property(lambda self: self.norm.at("pre", self.norm_kind))
    post_branch_norm = property(lambda self: self.norm.at("post_branch", self.norm_kind))
    post_residual_norm = property(lambda self: self.norm.at("post_residual", self.norm_kind))
    embedding_norm = property(lambda self: self.norm.at("embedding", self.norm_kind))
    final_norm = property(lambda self: self.norm.at("final", self.norm_kind))
    attention_side = property(lambda self: self.branch_config("attention"))

    @property
    def norms(self) -> tuple[Norm, ...]:
        """All norms of the model."""
        sides = [block.branch_config(name) for block in self._period for name, _ in block.branches()]
        places = [(side.pre_norm, side.post_branch_norm, side.post_residual_norm) for side in sides]
        norms = [norm for block_norms in places for norm in block_norms] + [self.embedding_norm, self.final_norm]
        norms += [self.norm_kind] if getattr(self.head, "transform", None) is not None else []
        return tuple(norm for norm in norms if norm is not None)

    @property
    def batch_mixers(self) -> tuple[Component, ...]:
        """Norms and branches that need the whole batch in training."""
        branches = [branch for block in self._period for _, branch in block.branches()]
        return tuple(component for component in (*self.norms, *branches) if component.mixes_batch)

    mixes_batch = property(lambda self: bool(self.batch_mixers))
    """True if the result of a sequence depends on other sequences of the batch in training."""

    @property
    def is_causal(self) -> bool:
        """True if the result of a token does not depend on later tokens, except within a prefix."""
        return self.mask_pattern != "bidirectional" and all(norm.is_causal for norm in self.norms)

    @property
    def reads_memory(self) -> bool:
        """True if the blocks have cross-attention."""
        return self.encoder is not None or self.d_memory is not None

    @property
    def mixers(self) -> dict[str, Branch]:
        """Token mixers, and other branches of self-attention's sequence that read other tokens, by their path."""
        blocks = {f"pattern.{n}.": self.block_config(n) for n in range(len(self.pattern))} or {"": self}
        return {
            f"{path}{name}": branch
            for path, block in blocks.items()
            for name, branch in block.branches()
            if branch.reads_others and name != "cross_attention"
        }

    @property
    def mixers_without_mask(self) -> dict[str, Branch]:
        """Token mixers that read no mask, by the path of their field."""
        return {path: mixer for path, mixer in self.mixers.items() if not mixer.reads_mask}

    @property
    def mixers_without_state(self) -> dict[str, Branch]:
        """Token mixers of a causal model that have no decoding state, by the path of their field."""
        return {path: mixer for path, mixer in self.mixers.items() if self.is_causal and not mixer.has_state}

    @property
    def max_length(self) -> int | None:
        """Longest sequence that the model can read; None for no limit."""
        schemes = [self.positions, *(config.attention_scheme for config in self.block_configs)]
        lengths = [*(scheme.max_length for scheme in schemes), *(mixer.max_length for mixer in self.mixers.values())]
        return min((length for length in lengths if length is not None), default=None)

    @property
    def scales_weights(self) -> bool:
        """True if learning rate and weight decay differ between weights by the parametrization."""
        stacks = (self, *(() if self.encoder is None else (self.encoder,)))
        return any(type(stack.parametrization) is not Parametrization for stack in stacks)

    def initial_value(self, spec: Spec, number: float | Array | None = None) -> InitialValue:
        """Return the initial value of a weight.

        The scale is the product of that of the initializer or the declaration, of the exception that selects the weight
        (`Initial`), of the residual rule for the matrices of a branch, and of the parametrization for its role.

        Args:
          spec: with the path of the weight.
          number: what the declaration gives: a standard deviation, or the value of a constant.
        """
        at_base = self.parametrization.at_base_width(spec, self.d_model)
        if number is None:
            value = drawn_by(self.initializer, at_base)
        else:
            value = InitialValue(number, is_constant=spec.init != "normal")
        if rule := next((rule for rule in self.initial if rule.selects(spec)), None):
            value = rule.value(value, at_base, sum(len(list(layer.branches())) for layer in self.layer_configs))
        if value.is_constant:
            return value
        gain = self.residual.branch_gain(self.layers, self.reads_memory) if spec.init == "branch" else 1.0
        scale = value.scale * gain if gain != 1.0 else value.scale
        scales = self.parametrization.scales(spec.role, self.d_model)
        return value._replace(scale=scale if scales is None else scale * scales.init)

    def mask(self, *, prefix: Int[Array, "*batch"] | None = None, offset: int | Int[Array, ""] = 0) -> Mask | None:
        """Return the mask of `mask_pattern`, without padding and without the window of an attention.

        Args:
          prefix: number of tokens at the start of each sequence that all tokens attend to; with mask_pattern "prefix".
          offset: number of keys before the first query, with a decoding state.
        """
        if self.mask_pattern == "bidirectional":
            return None
        if self.mask_pattern == "prefix" and prefix is not None:
            return Causal(offset) | Prefix(prefix)
        return Causal(offset)
