"""Samples during training: a continuation of held-out text, or a translation of a held-out line."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from flaxformer.data.tokenizer import Tokenizer, tokenizer
from flaxformer.model import Sampling, generate
from flaxformer.params import fold_in_name
from flaxformer.tasks import PairedFiles, PairedTokens, Source, Task, TokenFiles
from flaxformer.tasks.pairs import PairTask
from flaxformer.tasks.text import TextTask
from flaxformer.training import Run

PROMPT = 16
"""Tokens that a continuation is given, or half a window where that is less."""
TEMPERATURE = 0.8
"""Temperature of a continuation; a translation takes the likeliest token each time."""


class Sample(NamedTuple):
    """Prompt and continuation; or a line to translate, with its end, and the translation."""

    prompt: str
    text: str


def text_of(task: Task) -> Tokenizer | None:
    """Return the tokenizer that decodes the tokens of a task; None for a task that is not of text."""
    match task:
        case TextTask() | PairedFiles():
            return tokenizer(task.tokenizer)
        case TokenFiles() | PairedTokens():
            return tokenizer(task.folder.tokenizer_path)
    return None


def sampler(run: Run, source: Source, tokens: int) -> Callable[[Any, int], Sample] | None:
    """A function of weights and step that gives a sample of at most so many tokens; None where there is none to give.

    Its prompt is the first example of the evaluation set, and its draws are of the run's seed and the step alone, so
    that samples can be compared, and a run that goes on gives those of one that was never stopped. It changes nothing.
    """
    text, pairs = text_of(run.task), isinstance(run.task, PairTask)
    if text is None or not tokens:
        return None
    first = jax.tree.map(lambda leaf: np.asarray(leaf[0, :1]), source.evaluation())
    given = int(first.prefix[0]) if pairs else min(PROMPT, max(1, first.inputs.shape[1] // 2))
    prompt = first.inputs[:, :given].astype(np.int32)
    steps = tokens if run.model.max_length is None else min(tokens, run.model.max_length + 1 - given)
    if steps < 1:
        return None
    end = run.task.end if isinstance(run.task, PairTask) else None
    sampling = Sampling() if pairs else Sampling(temperature=TEMPERATURE)
    shown = text.decode((prompt if first.source is None else first.source)[0]) + ("\n" if pairs else "")
    key = fold_in_name(jax.random.key(run.seed), "samples")

    def sampled(params: Any, step: int) -> Sample:
        said = generate(
            params,
            run.model,
            prompt,
            steps=steps,
            sampling=sampling,
            end=end,
            key=jax.random.fold_in(key, step),
            source=first.source,
            source_valid=first.source_valid,
        )
        after = np.asarray(said.tokens)[0, : int(said.lengths[0])]
        return Sample(shown, text.decode(after) if pairs else text.decode([*prompt[0], *after])[len(shown) :])

    return sampled


def printable(text: str) -> str:
    """The text without what would command a terminal: any control character but a line's end or a tab becomes "·"."""
    return "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text)
