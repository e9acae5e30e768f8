"""Translation of lines of text by a model that learned pairs."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from flaxformer.config import ModelConfig
from flaxformer.data.tokenizer import as_said
from flaxformer.model import Sampling, beam_search, generate, stream
from flaxformer.struct import UserError
from flaxformer.tasks.pairs import PairTask

ROWS = 32
"""The most lines decoded at a time."""
ONE_LINE = str.maketrans("\r\n", "  ")


def translate(
    params: Any,
    model: ModelConfig,
    task: PairTask,
    lines: Sequence[bytes],
    *,
    steps: int | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 (immutable)
    beams: int | None = None,
    key: Array | None = None,
    name: str = "lines",
) -> Iterator[str]:
    """The translation of each line, in order, each on one line; nothing to an empty one.

    Lines are decoded `ROWS` at a time, padded to the task's `max_length`, by one compiled program; within a mesh, each
    device decodes its own, as in `generate`. A translation goes on until the end token, which is not part of it; nor
    are start and padding.

    Args:
      steps: the most tokens to say, the end among them; by default as many as the longest target has.
      sampling, key: as `generate` takes them; the key of a row is of the row and its batch.
      beams: search with as many, and take the best; nothing is drawn.
      name: what to call the lines in a message.

    Raises:
      UserError: a line is longer than the task's `max_length`; none has been translated then.
    """
    sources = [encoded(task, line, f"line {number} of {name}") for number, line in enumerate(lines, 1)]
    steps, key = steps or longest(task), jax.random.key(0) if key is None else key
    return _by_batches(params, model, task, sources, steps, sampling, beams, key)


def _by_batches(
    params: Any,
    model: ModelConfig,
    task: PairTask,
    sources: list[np.ndarray],
    steps: int,
    sampling: Sampling,
    beams: int | None,
    key: Array,
) -> Iterator[str]:
    rows = min(ROWS, len(sources)) or 1
    for first in range(0, len(sources), rows):
        own = sources[first : first + rows]
        asked = task.prompts(own + own[:1] * (rows - len(own)))
        if beams is None:
            drawn = jax.random.fold_in(key, first)
            said = generate(params, model, **asked, steps=steps, sampling=sampling, end=task.end, key=drawn).tokens
        else:
            said = beam_search(params, model, **asked, steps=steps, beams=beams, end=task.end).tokens[:, 0]
        for source, tokens in zip(own, jax.device_get(said), strict=False):
            yield task.encoding.decode(tokens).translate(ONE_LINE) if source.size else ""


def translated_piece_by_piece(
    params: Any,
    model: ModelConfig,
    task: PairTask,
    line: bytes,
    *,
    steps: int | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 (immutable)
    key: Array | None = None,
) -> Iterator[str]:
    """Yield the translation of one line as it is generated: each text is what is new since the one before.

    Raises:
      UserError: the line has no token, or too many.
    """
    source = encoded(task, line, "prompt")
    if not source.size:
        raise UserError("prompt is empty; expected a line to translate")
    pieces = stream(
        params, model, **task.prompts([source]), steps=steps or longest(task), sampling=sampling, end=task.end, key=key
    )
    for text in as_said(task.encoding.decode, (piece.tokens[0].tolist() for piece in pieces)):
        yield text.translate(ONE_LINE)


def encoded(task: PairTask, line: bytes, name: str) -> np.ndarray:
    """The tokens of a line, its spaces at both ends left out, as the task reads its lines.

    Raises:
      UserError: there are more than the task's `max_length`; the message has the name.
    """
    tokens = task.encoding.encode(line.strip())
    if tokens.size > task.max_length:
        raise UserError(f"{name} has {tokens.size} tokens; expected at most the task's max_length {task.max_length}")
    return tokens


def longest(task: PairTask) -> int:
    """Tokens of the longest target that the task has, its end among them."""
    return task.max_length + 1
