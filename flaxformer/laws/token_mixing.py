"""Laws of token mixing: only token mixers pass information between tokens, and only positions or masks reveal order."""

import operator
from typing import cast

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from flaxformer import model
from flaxformer.components import Attention
from flaxformer.components.branch import TokenMixer
from flaxformer.components.component import Context
from flaxformer.components.positions import NoPositions
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters
from flaxformer.laws.calls import random_key
from flaxformer.laws.embedded import give_vectors
from flaxformer.laws.inputs import NO_MASKS, Arguments
from flaxformer.laws.law import OK, Finding, difference, law, not_applicable, violation
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.laws.where import View, locate
from flaxformer.model import ForwardInputs, Transformer

PLACES = 24
"""Largest number of places at which a token is changed."""


@law(
    "tokens",
    "nothing but token mixers carries information from one token to another",
    "compute each token from its own vector; put what reads other tokens into a TokenMixer",
)
def tokens(subject: Subject) -> Finding:
    """Replace every token mixer by one whose update is 0, change one token, and compare the outputs of the others."""
    config, batch, x = subject.config, subject.long_batch, subject.long_vectors
    arguments = subject.source_of(batch)
    cross = {"cross_attention": config.cross} if config.reads_memory else {}
    pattern = tuple(
        block.replace(attention=_NoMixing()) if "attention" in block.changes() else block for block in config.pattern
    )
    unmixed = config.replace(
        attention=_NoMixing(), pattern=pattern, inputs=subject.embedded_config.inputs, dropout=None, **cross
    )
    if not all(path.endswith("attention") for path in config.mixers):
        return not_applicable("a feed-forward network declares that it reads other tokens")
    if not all(norm.is_causal for norm in unmixed.norms):
        return not_applicable("a norm declares that it reads other tokens")
    no_weights = _NoMixing.Weights()
    params = subject.params.replace(
        blocks=tuple(block.replace(attention=no_weights) for block in subject.params.blocks)
    )
    noise, length = np.random.default_rng(6).standard_normal(x.shape), x.shape[1]
    for key in (None,) if subject.mixes_batch else (None, random_key()):
        expected = np.asarray(_final(params, unmixed, x, batch.inputs, arguments, key))
        for place in np.unique(np.linspace(0, length - 1, PLACES).astype(int)):
            is_other = np.arange(length) != place
            changed = x + np.where(is_other[:, None], 0, noise)
            output = np.asarray(_final(params, unmixed, changed, batch.inputs, arguments, key))
            gap = difference(expected[:, is_other], output[:, is_other])
            if gap > subject.tolerance:
                when = "" if key is None else " in training"
                words = violation(f"without token mixers, changing token {place} changes others{when} by {gap:.2g}")
                call = NO_MASKS | arguments | {"key": key}
                first, second = (
                    call | subject.embedded_call(vectors, batch, params) | {"config": unmixed}
                    for vectors in (x, changed)
                )
                return locate(words, subject, first, second, _tokens_at(is_other))
    return OK


def _tokens_at(places: np.ndarray) -> View:
    """Return the function that selects the tokens at some places of an array with tokens."""
    return lambda x: x[:, places] if x.ndim > 2 else x


class _NoMixing(TokenMixer):
    """Token mixer whose update is 0."""

    def apply(self, weights: Parameters, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return jnp.zeros_like(x)


@fast_jit
def _final(
    params: Transformer,
    config: ModelConfig,
    vectors: ArrayLike,
    tokens: ArrayLike,
    arguments: Arguments,
    key: Array | None,
) -> Array:
    """Return the head's output if it has one per token, else the head's input."""
    embedded_params, inputs = give_vectors(params, config, vectors, tokens)
    outcome = model.run(
        embedded_params, config, inputs, cast(ForwardInputs, arguments), dropout_key=key, return_intermediates=True
    )
    assert outcome.intermediates is not None
    return outcome.output if config.head.pool == "none" else outcome.intermediates.final


@law(
    "order",
    "the model is equivariant to permutations if and only if it has neither positions nor a causal mask",
    "without positions, read tokens as a set, by context.mask alone; a position scheme must change the outputs",
)
def order(subject: Subject) -> Finding:
    """Permute the tokens of a bidirectional model without positions; or remove the positions of a model."""
    config = subject.config
    if not subject.has_output_per_token:
        return not_applicable("the model has one output per sequence")
    mixers = [block.attention for block in config.block_configs] or [config.attention]
    other_mixers = {type(mixer).__name__ for mixer in mixers if not isinstance(mixer, Attention)}
    x, batch = subject.vectors, subject.batch
    if isinstance(config.positions, NoPositions):
        if config.mask_pattern != "bidirectional":
            return not_applicable("the causal mask reveals the order")
        if other_mixers or any(
            isinstance(mixer, Attention) and (mixer.window is not None or mixer.frozen_pattern is not None)
            for mixer in mixers
        ):
            what = ", ".join(sorted(other_mixers)) or "a window or a frozen pattern"
            return not_applicable(f"{what} may reveal the order")
        permutation = np.random.default_rng(0).permutation(x.shape[1])
        order = operator.itemgetter((slice(None), permutation))
        tokens = batch.replace(inputs=order(np.asarray(batch.inputs))) if subject.reads_tokens else batch
        expected = order(np.asarray(subject.output(**NO_MASKS | subject.embedded_call(x, batch))))
        gap = difference(expected, np.asarray(subject.output(**NO_MASKS | subject.embedded_call(order(x), tokens))))
        words = f"permuted inputs give outputs that differ by {gap:.2g}, and the model has no positions"
        return OK if gap <= subject.tolerance else violation(words)
    if config.positions.width:
        return OK
    if not config.layers and config.is_causal:
        return not_applicable("the model has no layers")
    silent = subject.embedded_config.replace(positions=NoPositions())
    params = subject.params.replace(positions=NoPositions.Weights())
    with_positions = subject.output(**NO_MASKS | subject.embedded_call(x, batch))
    without_positions = subject.output(**NO_MASKS | subject.embedded_call(x, batch, params) | {"config": silent})
    if difference(with_positions, without_positions) > 0:
        return OK
    kind = type(config.positions).__name__
    if other_mixers and not any(isinstance(mixer, Attention) and mixer.frozen_pattern is None for mixer in mixers):
        return not_applicable(f"{', '.join(sorted(other_mixers))} does not read {kind}")
    if all(isinstance(mixer, Attention) and mixer.frozen_pattern is not None for mixer in mixers):
        return not_applicable("a frozen pattern does not read the positions")
    return violation(f"{kind} has no effect: without positions, the outputs are the same")
