"""Law of decoding: outputs with a cache, token by token, are those of the whole sequence."""

import itertools
from collections.abc import Iterator, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.laws.calls import ModelInputs
from flaxformer.laws.inputs import NO_MASKS
from flaxformer.laws.law import Finding, compare, first_violated, law, not_applicable
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.model import Transformer
from flaxformer.model.cache import Cache
from flaxformer.model.call import PrefixInputs
from flaxformer.model.prefill import read_prompt
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError

CHUNK = 3
"""Number of tokens that are read at once, where it is neither 1 nor a whole prompt."""
CONTINUED = 7
"""Number of tokens that follow a long prompt."""


@law(
    "decoding",
    "decoding with a cache gives the outputs of the whole sequence, also with padding, in chunks, after long prompts",
    "let apply be step from the state of init_state; step reads one or several tokens, leaves the state as it is where "
    "context.valid is False, and forgets no token (a state with an entry per token has a method pad_to(capacity)); use "
    "positions, not the number or the index of tokens or keys, which are those of a call and of a cache's capacity",
)
def decoding(subject: Subject) -> Finding:
    """Read a prompt at once, in chunks and one by one, in rows with and without padding, in both layouts."""
    if subject.reason_not_causal is not None:
        return not_applicable(subject.reason_not_causal)
    if not subject.reads_tokens:
        return not_applicable("the model does not decode tokens")
    try:
        return first_violated(itertools.chain(_check_prompt(subject), _check_chunks(subject)))
    except UserError as error:
        return not_applicable(str(error))


def _check_prompt(subject: Subject) -> Iterator[Finding]:
    """Read most of one sequence as `generate` reads a prompt, and continue it one by one and by a chunk."""
    params, inputs = jax.tree.map(jnp.asarray, subject.params), np.asarray(subject.long_batch.inputs)
    length, config, source_arguments = inputs.shape[1], subject.config, subject.source_of(subject.long_batch)
    first = max(1, length - CONTINUED)
    prefix = np.full(len(inputs), first) if config.mask_pattern == "prefix" else None  # the prompt
    expected = np.asarray(subject.output(inputs, **NO_MASKS | source_arguments | {"prefix": prefix}))[:1]
    capacity = _capacity(config, length)

    def read(
        params: Transformer, config: ModelConfig, prompt: Array, fixed_inputs: PrefixInputs
    ) -> tuple[Cache, Array]:
        return read_prompt(params, config, prompt, jnp.ones(prompt.shape, bool), fixed_inputs, capacity)

    prefix_inputs = cast(PrefixInputs, {name: x[:1] for name, x in source_arguments.items()})
    cache, logits = fast_jit(read)(params, config, jnp.asarray(inputs[:1, :first]), prefix_inputs)
    what = f"outputs for the last token of a prompt of {first} and of the whole sequence"
    yield compare(expected[:, first - 1], logits, what, subject.tolerance)
    start = first
    while start < length:
        size = CHUNK if start == first + 1 and start + CHUNK <= length else 1
        here, last = slice(start, start + size), start + size - 1
        output, cache = _extend(params, config, inputs[:1, here], cache, None)
        tokens = f"token {start}" if size == 1 else f"tokens {start} to {last}, read at once,"
        what = f"outputs for {tokens} by decoding and of the whole sequence"
        yield compare(expected[:, here], output, what, subject.tolerance)
        start += size


def _check_chunks(subject: Subject) -> Iterator[Finding]:
    """Decode rows with padding in chunks and single tokens in turn, with scanned layers if possible.

    The outputs are compared with those of the rows without padding.
    """
    params, inputs = jax.tree.map(jnp.asarray, subject.params), np.asarray(subject.long_batch.inputs)
    rows, length = inputs.shape
    scanned, valid = with_layout(params, "scanned"), _padding(rows, length)
    compressed = np.zeros_like(inputs)
    for row in range(rows):
        compressed[row, : valid[row].sum()] = inputs[row, valid[row]]
    real = np.arange(length) < valid.sum(-1, keepdims=True)
    source_arguments = subject.source_of(subject.long_batch)
    expected = np.asarray(subject.output(compressed, **NO_MASKS | source_arguments | {"valid": real}))
    outputs = np.zeros_like(expected)
    start, capacity = 0, _capacity(subject.config, length)
    cache = model.new_cache(scanned, subject.config, (rows,), capacity, **source_arguments)
    while start < length:
        size = CHUNK if start % (CHUNK + 2) == 0 and start + CHUNK <= length else 1
        here = slice(start, start + size)
        output, cache = _extend(scanned, subject.config, inputs[:, here], cache, jnp.asarray(valid[:, here]))
        outputs[:, here] = np.asarray(output)
        start += size
    for row in range(rows):
        count = int(valid[row].sum())
        how = "" if isinstance(scanned.blocks, tuple) else ", with scanned layers,"
        what = f"outputs by decoding a sequence with padding{how} and of its {count} tokens alone"
        yield compare(expected[row, :count], outputs[row, valid[row]], what, subject.tolerance)


def _padding(rows: int, length: int) -> Bool[np.ndarray, "rows T"]:
    """Return a mask with padding at other places in each row: first, none, after each chunk, and in late chunks."""
    single = range(CHUNK, length, CHUNK + 2)
    kinds: tuple[Sequence[int], ...] = ([0, 1, CHUNK + 1], [], single, [CHUNK - 1, length // 2, length - 3])
    valid = np.ones((rows, length), bool)
    for row in range(rows):
        valid[row, [at for at in kinds[row % len(kinds)] if 0 <= at < length - 1]] = False
    return valid


def _capacity(config: ModelConfig, length: int) -> int:
    """Return the capacity of a cache, with room for two more tokens if the model can read them."""
    return length + 2 if config.max_length is None or length + 2 <= config.max_length else length


@fast_jit
def _extend(
    params: Transformer, config: ModelConfig, inputs: ModelInputs, cache: Cache, valid: Array | None
) -> tuple[Array, Cache]:
    return model.extend(params, config, jnp.asarray(inputs), cache, valid=valid)
