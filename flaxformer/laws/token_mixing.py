"""Laws about information between tokens: only token mixers carry it, and only positions or a mask tell the order."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from flaxformer import model
from flaxformer.config import Attention
from flaxformer.laws.inputs import NO_MASKS
from flaxformer.laws.law import OK, Finding, difference, law, not_applicable, violated
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject, random_key
from flaxformer.laws.where import located
from flaxformer.parts.mixers import TokenMixer
from flaxformer.parts.positions import NoPositions


@law("tokens", "nothing but token mixers carries information from one token to another")
def tokens(subject: Subject) -> Finding:
    """Replace every token mixer by one that does nothing, and change one token; the others' results stay."""
    config, given, x = subject.config, subject.source, subject.vectors
    cross = {"cross_attention": config.cross} if config.reads_memory else {}
    pattern = tuple(
        block.replace(attention=_NoMixing()) if "attention" in block.changes() else block for block in config.pattern
    )
    still = config.replace(
        attention=_NoMixing(), pattern=pattern, inputs=subject.embedded_config.inputs, dropout=None, **cross
    )
    if not all(norm.is_causal for norm in still.norms):
        return not_applicable("a norm declares that it reads other tokens")
    idle = _NoMixing.Weights()
    params = subject.params.replace(blocks=tuple(own.replace(attention=idle) for own in subject.params.blocks))
    changed = x.copy()
    changed[:, 2] += np.random.default_rng(6).standard_normal(changed[:, 2].shape)
    others = np.arange(x.shape[1]) != 2
    keys = (None,) if subject.mixes_batch else (None, random_key())
    for key in keys:
        one, two = (_final(params, still, inputs, given, key) for inputs in (x, changed))
        gap = difference(np.asarray(one)[:, others], np.asarray(two)[:, others])
        if gap > subject.tolerance:
            when = "" if key is None else " in training"
            found = violated(f"without token mixers, changing one token changes others{when} by {gap:.2g}")
            call = NO_MASKS | {"config": still, "params": params, "key": key}
            one, two = ({"inputs": inputs} | call for inputs in (x, changed))
            return located(found, subject, one, two, lambda x: x[:, others] if x.ndim > 2 else x)
    return OK


class _NoMixing(TokenMixer):
    """A token mixer whose update is 0."""

    def apply(self, weights: Any, x: Any, context: Any) -> Any:
        return jnp.zeros_like(x)


@fast_jit
def _final(params: Any, config: Any, inputs: Any, given: Any, key: Any) -> Any:
    """Return the vectors before the head, or its output where it has one per token."""
    outcome = model.run(params, config, inputs, given, dropout_key=key, return_intermediates=True)
    return outcome.output if config.head.pool == "none" else outcome.intermediates.final


@law("order", "the model is equivariant to permutations exactly where nothing tells it the order")
def order(subject: Subject) -> Finding:
    """Permute the tokens of a bidirectional model, and take the positions away."""
    config = subject.config
    if not subject.answers_each_token:
        return not_applicable("the model has one output per sequence")
    mixers = [own.attention for own in config.block_configs] or [config.attention]
    others = {type(own).__name__ for own in mixers if not isinstance(own, Attention)}
    x = subject.vectors
    call = NO_MASKS | {"config": subject.embedded_config}
    if isinstance(config.positions, NoPositions):
        if config.mask_pattern != "bidirectional":
            return not_applicable("the causal mask tells the order")
        if others or any(own.window is not None or own.frozen_pattern is not None for own in mixers):
            what = ", ".join(sorted(others)) or "a window or a frozen pattern"
            return not_applicable(f"{what} may tell the order")
        permutation = np.random.default_rng(0).permutation(x.shape[1])
        expected = np.asarray(subject.output(x, **call))[:, permutation]
        gap = difference(expected, np.asarray(subject.output(x[:, permutation], **call)))
        words = f"permuted inputs give outputs that differ by {gap:.2g}, and the model has no positions"
        return OK if gap <= subject.tolerance else violated(words)
    if config.positions.width:
        return OK
    if not config.layers and config.is_causal:
        return not_applicable("the model has no layers")
    silent = subject.embedded_config.replace(positions=NoPositions())
    params = subject.params.replace(positions=NoPositions.Weights())
    if difference(subject.output(x, **call), subject.output(x, params, **call | {"config": silent})) > 0:
        return OK
    kind = type(config.positions).__name__
    if others and not any(isinstance(own, Attention) and own.frozen_pattern is None for own in mixers):
        return not_applicable(f"{', '.join(sorted(others))} does not read {kind}")
    if all(isinstance(own, Attention) and own.frozen_pattern is not None for own in mixers):
        return not_applicable("a frozen pattern does not read the positions")
    return violated(f"{kind} has no effect: without positions, the outputs are the same")
