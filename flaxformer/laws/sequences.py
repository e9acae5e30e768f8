"""Laws about what a token may depend on: order, padding, the batch, and decoding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import model
from flaxformer.laws.law import (
    OK,
    Finding,
    compared,
    compared_trees,
    difference,
    law,
    not_applicable,
    tolerance,
    violated,
    worst,
)
from flaxformer.laws.subject import Subject
from flaxformer.parts.positions import NoPositions
from flaxformer.struct import UserError


@law("causality", "no answer depends on later tokens, in value or in gradient")
def causality(subject: Subject) -> Finding:
    """Change everything after each token; the answers up to it stay."""
    if not subject.is_causal or not subject.answers_each_token:
        return not_applicable("the model sees whole sequences")
    inputs, other = subject.batch.inputs, subject.other_inputs()
    expected = np.asarray(subject.output())
    length = inputs.shape[1]
    for last in range(length - 1):
        changed = jnp.concatenate([inputs[:, : last + 1], other[:, last + 1 :]], axis=1)
        found = np.asarray(subject.output(changed))[:, : last + 1]
        gap = difference(expected[:, : last + 1], found)
        if gap > tolerance(expected):
            return violated(f"the answers up to token {last} change by {gap:.2g} when later tokens do")
    return OK


@law("padding", "padding on either side changes no answer and no gradient, even where it is NaN")
def padding(subject: Subject) -> Finding:
    """Append and prepend padding with arbitrary contents."""
    config = subject.config
    if subject.batch.inputs.ndim > 3 or not subject.answers_each_token or subject.batch.segments is not None:
        return not_applicable("the inputs have no padding")
    if subject.batch.positions is not None:
        return not_applicable("the task gives positions of its own")
    rows, length = subject.batch.inputs.shape[:2]
    extra = 3
    limit = config.max_length
    if limit is not None and length + extra > limit:
        length = limit - extra
        if length < 2:
            return not_applicable(f"the model reads at most {limit} tokens")
    inputs = subject.batch.inputs[:, :length]
    real = subject.batch.valid
    valid = jnp.ones((rows, length), bool) if real is None else jnp.asarray(real)[:, :length]
    given = {"valid": valid}
    expected = subject.output(inputs, **given)
    findings = []
    fills = ["other"] if subject.reads_tokens else ["other", "nan"]
    for fill in fills:
        shape = (rows, extra, *inputs.shape[2:])
        filling = jnp.full(shape, jnp.nan) if fill == "nan" else subject.other_inputs(2)[:, :extra]
        filling = filling if filling.shape == shape else jnp.resize(filling, shape)
        longer = jnp.concatenate([inputs, filling.astype(inputs.dtype)], axis=1)
        wide = jnp.concatenate([valid, jnp.zeros((rows, extra), bool)], axis=1)
        found = subject.output(longer, valid=wide)[:, :length]
        what = f"answers with {extra} tokens of {fill} padding behind and without" if fill == "nan" else (
            f"answers with {extra} tokens of padding behind and without"
        )  # fmt: skip
        findings.append(compared(np.where(valid[..., None], expected, 0), np.where(valid[..., None], found, 0), what))
        gradients = [_gradient(subject, own, mask, length) for own, mask in ((inputs, valid), (longer, wide))]
        findings.append(compared_trees(*gradients, f"gradients with {fill} padding and without"))
    return worst(*findings)


def _gradient(subject: Subject, inputs: Any, valid: Any, length: int) -> Any:
    def loss(params: Any) -> Any:
        answer = subject.output(inputs, params, valid=valid)[:, :length]
        return jnp.where(valid[:, :length, None], jnp.sin(answer), 0).sum()

    return jax.device_get(jax.grad(loss)(subject.params))


@law("batch", "the sequences of a batch do not influence each other")
def batch(subject: Subject) -> Finding:
    """Change one sequence; the answers to the others stay."""
    inputs, other = subject.batch.inputs, subject.other_inputs(3)
    if len(inputs) < 2:
        return not_applicable("the batch has one sequence")
    changed = jnp.concatenate([inputs[:1], other[1:]])
    return compared(
        subject.output()[:1], subject.output(changed)[:1], "answers to one sequence beside different others"
    )


@law("decoding", "decoding with a state gives the answers of the whole sequence")
def decoding(subject: Subject) -> Finding:
    """Read a prefix in one call, then token by token."""
    if not subject.is_causal or not subject.answers_each_token or not subject.reads_tokens:
        return not_applicable("the model does not decode tokens")
    if subject.batch.segments is not None or subject.batch.positions is not None:
        return not_applicable("the task packs several documents into a sequence")
    inputs, params, config = subject.batch.inputs, subject.params, subject.config
    rows, length = inputs.shape
    given: Any = {k: v for k, v in subject.batch.given.items() if v is not None and k in ("source", "source_valid")}
    expected = subject.output(valid=jnp.ones(inputs.shape, bool))
    try:
        state = model.new_cache(params, config, (rows,), length, **given)
    except UserError as error:
        return not_applicable(str(error))
    extend = jax.jit(model.extend)
    first = max(1, length // 2)
    said, state = extend(params, config, inputs[:, :first], state)
    answers = [said]
    for token in range(first, length):
        said, state = extend(params, config, inputs[:, token : token + 1], state)
        answers.append(said)
    return compared(expected, jnp.concatenate(answers, axis=1), "answers by decoding and of the whole sequence")


@law("order", "the model is equivariant to permutations exactly where nothing tells it the order")
def order(subject: Subject) -> Finding:
    """Permute the tokens."""
    config = subject.config
    bidirectional = getattr(config, "visibility", "causal") == "full"
    if not bidirectional or subject.batch.inputs.ndim > 3 or not subject.answers_each_token:
        return not_applicable("a causal model knows the order")
    permutation = np.random.default_rng(0).permutation(subject.batch.inputs.shape[1])
    none = {"valid": None, "mask": None, "positions": None}
    expected = np.asarray(subject.output(**none))[:, permutation]
    found = np.asarray(subject.output(subject.batch.inputs[:, permutation], **none))
    gap = difference(expected, found)
    if isinstance(config.positions, NoPositions):
        words = f"permuted inputs give answers that differ by {gap:.2g}, and the model has no positions"
        return OK if gap <= tolerance(expected) else violated(words)
    words = f"permuted inputs give permuted answers: {type(config.positions).__name__} has no effect"
    return violated(words) if gap <= tolerance(expected) else OK


LAWS = (causality, padding, batch, decoding, order)
