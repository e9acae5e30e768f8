"""Translation of lines of text by a model that was trained on pairs."""

from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Array

from flaxformer.config import ModelConfig
from flaxformer.core.points import Edit
from flaxformer.data.tokenizer import decode_stream
from flaxformer.model import Sampling, Transformer, beam_search, generate, stream
from flaxformer.system.errors import UserError
from flaxformer.tasks.pairs import PairTask

ROWS = 32
"""Largest number of lines that are decoded at a time."""
ONE_LINE = str.maketrans("\r\n", "  ")


def translate(
    params: Transformer,
    model: ModelConfig,
    task: PairTask,
    lines: Sequence[bytes],
    *,
    steps: int | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 (immutable)
    beams: int | None = None,
    key: Array | None = None,
    edit: Mapping[str, Edit] | None = None,
    name: str = "lines",
) -> Iterator[str]:
    """Translate lines, and yield the translations in order; that of an empty line is empty.

    `ROWS` lines at a time, padded to the task's `max_length`, are decoded by one compiled program; in a mesh, each
    device decodes its share, as in `generate`. A translation ends before the end token, and line breaks in it are
    replaced by spaces.

    Args:
      params, model: weights and config.
      task: the task that the model was trained on.
      lines: UTF-8 text.
      steps: largest number of tokens to generate, including the end; by default as many as the longest target has.
      sampling, key: those of `generate`; the key of a line depends on its place in its batch.
      beams: if given, use beam search with this number of beams, and yield the best translation.
      edit: functions of activations by path, as for `generate`; those of a batch are edited together.
      name: name of the lines in error messages.

    Raises:
      UserError: a line is longer than the task's `max_length`; raised before any line is translated.
    """
    encoder_inputs = [encode_line(task, line, f"line {number} of {name}") for number, line in enumerate(lines, 1)]
    steps, key = steps or longest_target(task), jax.random.key(0) if key is None else key
    return _translate_batches(params, model, task, encoder_inputs, steps, sampling, beams, key, edit)


def _translate_batches(
    params: Transformer,
    model: ModelConfig,
    task: PairTask,
    encoder_inputs: list[np.ndarray],
    steps: int,
    sampling: Sampling,
    beams: int | None,
    key: Array,
    edit: Mapping[str, Edit] | None,
) -> Iterator[str]:
    batch_size = min(ROWS, len(encoder_inputs)) or 1
    for first in range(0, len(encoder_inputs), batch_size):
        batch = encoder_inputs[first : first + batch_size]
        prompts = task.prompts(batch + batch[:1] * (batch_size - len(batch)))
        if beams is None:
            batch_key = jax.random.fold_in(key, first)
            output = generate(
                params, model, **prompts, steps=steps, sampling=sampling, end=task.end, key=batch_key, edit=edit
            ).tokens
        else:
            hypotheses = beam_search(params, model, **prompts, steps=steps, beams=beams, end=task.end, edit=edit)
            output = hypotheses.tokens[:, 0]
        for encoder_input, tokens in zip(batch, jax.device_get(output), strict=False):
            yield task.encoding.decode(tokens).translate(ONE_LINE) if encoder_input.size else ""


def stream_translation(
    params: Transformer,
    model: ModelConfig,
    task: PairTask,
    line: bytes,
    *,
    steps: int | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 (immutable)
    key: Array | None = None,
    edit: Mapping[str, Edit] | None = None,
) -> Iterator[str]:
    """Translate one line, and yield the new text as it is generated.

    Raises:
      UserError: the line is empty, or longer than the task's `max_length`.
    """
    encoder_input = encode_line(task, line, "prompt")
    if not encoder_input.size:
        raise UserError("prompt is empty; expected a line to translate")
    steps = steps or longest_target(task)
    prompt = task.prompts([encoder_input])
    pieces = stream(params, model, **prompt, steps=steps, sampling=sampling, end=task.end, key=key, edit=edit)
    for text in decode_stream(task.encoding.decode, (piece.tokens[0].tolist() for piece in pieces)):
        yield text.translate(ONE_LINE)


def encode_line(task: PairTask, line: bytes, name: str) -> np.ndarray:
    """Return the tokens of a line without spaces at both ends, as the task reads its lines.

    Raises:
      UserError: there are more than the task's `max_length`; the message begins with `name`.
    """
    tokens = task.encoding.encode(line.strip())
    if tokens.size > task.max_length:
        raise UserError(f"{name} has {tokens.size} tokens; expected at most the task's max_length {task.max_length}")
    return tokens


def longest_target(task: PairTask) -> int:
    """Return the number of tokens of the longest possible target, including its end."""
    return task.max_length + 1
