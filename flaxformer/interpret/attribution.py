"""Logits by parts of the model: direct logit attribution, a term per part that writes to the stream; logit lens."""

from collections.abc import Iterator
from typing import Unpack, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from flaxformer import model
from flaxformer.components.attention import Attention
from flaxformer.components.component import Context
from flaxformer.components.heads import LanguageModel
from flaxformer.components.norms import Affine, LayerNorm, RMSNorm
from flaxformer.components.residuals import DeepNorm, DepthScaled, LayerScale, Residual, ReZero
from flaxformer.config import ModelConfig
from flaxformer.core.points import Edit
from flaxformer.model.blocks import BranchActivations, ResidualParams
from flaxformer.model.call import ForwardInputs
from flaxformer.model.context import stack_context
from flaxformer.model.layout import unroll
from flaxformer.model.weights import Transformer
from flaxformer.nn.widen import widen
from flaxformer.system.errors import UserError

RULES = (Residual, ReZero, LayerScale, DepthScaled, DeepNorm)
"""Residual rules that are linear in the stream and in the update."""


def direct_logit_attribution(
    params: Transformer,
    config: ModelConfig,
    inputs: Array,
    targets: Int[Array, "*batch T"],
    *,
    against: Int[Array, "*batch T"] | None = None,
    by_head: bool = True,
    **arguments: Unpack[ForwardInputs],
) -> dict[str, Float[Array, "*batch T"]]:
    """Return the terms whose sum is the logit of a token at each position, or the difference of two logits.

    The residual stream before the final norm is a sum of vectors c_i: the embedded input and the update of each branch,
    with its gain; the update of an `Attention` is that of each head, y_n W_O[n], and its bias. With the scale s of the
    final norm as it is in this forward pass (frozen), and its gain g, the term of c is s · (c − mean c) · (g ⊙ u) for
    LayerNorm and s · c · (g ⊙ u) for RMSNorm, where u is the column of the token in the output matrix. It is exact up
    to rounding: the terms and the biases add up to the logit.

    Args:
      targets: the token whose logit is decomposed, at every position.
      against: the token whose logit is subtracted; None for none.
      by_head: one term per head; False for one per branch.
      arguments: further arguments of `apply`.

    Returns:
      Terms by path: "embedded", "blocks/0/attention/heads/2", "blocks/0/attention/bias", "blocks/0/feed_forward",
      "final_norm/bias", "head/bias". A token mixer without heads of its own is one term, "blocks/0/attention".

    Raises:
      UserError: the logit is not such a sum: with a norm after the addition (post-norm), a residual rule that is not
        linear, another final norm, or a head with a transform or a cap; by head, with a norm after the branch.

    Source: Elhage et al. 2021, "A mathematical framework for transformer circuits"; frozen scale as in nostalgebraist's
    logit lens and Wang et al. 2022.
    """
    for problem in _problems(config, by_head):
        raise UserError(f"direct logit attribution is not defined: {problem}")
    _, intermediates = model.apply_with_intermediates(params, config, inputs, **arguments)
    direction, constants = _direction(params, config, _last_stream(config, intermediates), targets, against)
    context = stack_context(config, memory=None, memory_valid=None)
    terms = {"embedded": _dot(intermediates.embedded, direction)}
    blocks = unroll(params.blocks)
    for layer, block_config in enumerate(config.layer_configs):
        weights = blocks[config.block_of_layer(layer)]
        for name, branch in block_config.branches():
            factor = _skip_factor(block_config.residual, context) if getattr(block_config, f"{name}_residual") else 0.0
            terms = {path: factor * term for path, term in terms.items()} if factor != 1.0 else terms
            activations = cast(BranchActivations, getattr(intermediates.blocks[layer], name))
            around = cast(ResidualParams, getattr(weights, f"{name}_connection"))
            place = f"blocks/{layer}/{name}"
            for end, update in _updates(branch, getattr(weights, name), activations, by_head):
                change = block_config.residual.join(around.residual, jnp.zeros_like(update), update, context)
                terms[place + end] = _dot(change, direction)
    return terms | constants


def _problems(config: ModelConfig, by_head: bool) -> Iterator[str]:
    """Yield the reasons for which a logit is not a sum of terms of the branches."""
    for layer, block_config in enumerate(config.layer_configs):
        sides = [block_config.branch_config(name) for name, _ in block_config.branches()]
        if any(side.post_residual_norm is not None for side in sides):
            yield "norm.post_residual is given, which normalises the sum; expected a placement such as PRE or SANDWICH"
        if by_head and any(side.post_branch_norm is not None for side in sides):
            yield "norm.post_branch is given, which normalises the sum of the heads; expected by_head=False"
        if type(block_config.residual) not in RULES:
            expected = ", ".join(rule.__name__ for rule in RULES)
            yield f"residual of block {layer} is {type(block_config.residual).__name__}; expected one of {expected}"
    norm, head = config.final_norm, config.head
    if norm is not None and (type(norm) not in (LayerNorm, RMSNorm) or not norm.is_causal):
        yield f"the final norm is {type(norm).__name__}; expected LayerNorm or RMSNorm over each token, or none"
    if type(head) is not LanguageModel:
        yield f"head is {type(head).__name__}; expected LanguageModel"
    elif head.transform is not None or head.logit_cap is not None:
        fields = f"transform {head.transform!r} and logit_cap {head.logit_cap}"
        yield f"head has {fields}; expected a LanguageModel without transform and logit_cap"


def _last_stream(config: ModelConfig, intermediates: model.Intermediates) -> Float[Array, "*batch T D"]:
    """Return the residual stream before the final norm."""
    if not config.layers:
        return intermediates.embedded
    branch = list(config.layer_configs[-1].branches())[-1][0]
    return getattr(intermediates.blocks[-1], branch).stream


def _direction(
    params: Transformer,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    targets: Int[Array, "*batch T"],
    against: Int[Array, "*batch T"] | None,
) -> tuple[Float[Array, "*batch T D"], dict[str, Float[Array, "*batch T"]]]:
    """Return the vector whose product with a part of the stream is its term, and the terms that are constant."""
    head, weights = cast(LanguageModel, config.head), cast(LanguageModel.Weights, params.head)
    table = getattr(params.embedding, "tokens", None) if weights.matrix is None else weights.matrix.T

    def of(rows: Array) -> Array:
        rows = widen(rows)
        return rows[targets] if against is None else rows[targets] - rows[against]

    assert table is not None, "a head without a matrix is tied to the embedding table"
    column = of(table)
    if head.scale_exponent is not None:
        column = column * jnp.exp2(-head.scale_exponent * jnp.log2(x.shape[-1]))
    constants = {} if weights.bias is None else {"head/bias": of(weights.bias)}
    norm, affine = config.final_norm, cast(Affine | None, params.final_norm)
    if norm is None or affine is None:
        return column, constants
    if affine.bias is not None:
        constants = {"final_norm/bias": _dot(jnp.broadcast_to(affine.bias, x.shape), column)} | constants
    if affine.gain is not None:
        column = column * jnp.broadcast_to(affine.gain, column.shape)
    x = x.astype(column.dtype)
    if isinstance(norm, LayerNorm):
        column, x = (y - y.mean(-1, keepdims=True) for y in (column, x))
    epsilon = cast(LayerNorm | RMSNorm, norm).epsilon
    return column * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon), constants


def _skip_factor(rule: Residual, context: Context) -> float:
    """Return the factor of the stream in a residual rule."""
    return rule.skip_gain(context.layers, context.reads_source) if isinstance(rule, DeepNorm) else 1.0


def _updates(
    branch: object, weights: object, activations: BranchActivations, by_head: bool
) -> Iterator[tuple[str, Float[Array, "*batch T D"]]]:
    """Yield the parts of a branch's output, each with the end of its path."""
    assert activations.output is not None, "a branch has an output"
    if not (by_head and _adds_heads(branch)):
        yield "", activations.output
        return
    params, mixed = cast(Attention.Weights, weights), activations.intermediates["heads"]
    for head in range(mixed.shape[-2]):
        y = mixed[..., head, :]
        yield (
            f"/heads/{head}",
            y if params.out is None else (y @ params.out[head]).astype(y.dtype),
        )
    if params.out_bias is not None:
        yield "/bias", jnp.broadcast_to(params.out_bias, activations.output.shape).astype(mixed.dtype)


def _adds_heads(branch: object) -> bool:
    """True if the output of a branch is the sum over the heads of an attention."""
    kind = type(branch)
    return issubclass(kind, Attention) and kind.apply is Attention.apply and kind.read is Attention.read


def _dot(x: Float[Array, "*batch T D"], direction: Float[Array, "*batch T D"]) -> Float[Array, "*batch T"]:
    return (x.astype(direction.dtype) * direction).sum(-1)


def logit_lens(
    params: Transformer, config: ModelConfig, inputs: Array, **arguments: Unpack[ForwardInputs]
) -> dict[int, Float[Array, "..."]]:
    """Return head(final_norm(x_l)) for the residual stream x_l after l blocks, by l = 0 … layers.

    x_0 are the embedded inputs, and the entry of all layers is the output of the model. Each output is that of the
    model with the stream after the last block replaced by x_l, so that it holds for any norm, residual rule and head;
    blocks that this makes superfluous are not computed under `jit`.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    if not config.layers:
        return {0: model.apply(params, config, inputs, **arguments)}
    branches = [list(block_config.branches())[-1][0] for block_config in config.layer_configs]
    ends = [f"blocks/{layer}/{branch}/stream" for layer, branch in enumerate(branches)]
    activations = model.activations_at(params, config, inputs, ["embedded", *ends], **arguments)
    streams = [config.residual.begin(activations["embedded"], config.layers), *(activations[path] for path in ends)]

    def after(stream: PyTree) -> Edit:
        return lambda last: jax.tree.map(lambda new, old: new.astype(old.dtype), stream, last)

    return {
        depth: model.apply(params, config, inputs, edit={ends[-1]: after(stream)}, **arguments)
        for depth, stream in enumerate(streams)
    }
