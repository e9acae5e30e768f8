"""Samples during training: a continuation of held-out text, or a translation of a held-out line."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from flaxformer.core.params import fold_in_name
from flaxformer.model import Sampling, generate
from flaxformer.model.weights import Transformer
from flaxformer.tasks import Source
from flaxformer.tasks.masked import MaskedText, complete_text
from flaxformer.tasks.pairs import PairTask
from flaxformer.tasks.task_tokenizer import text_of
from flaxformer.training import Run

PROMPT = 16
"""Tokens of the prompt of a continuation; or half a window, if that is less."""
TEMPERATURE = 0.8
"""Temperature of a continuation; a translation takes the most likely token each time."""


class Sample(NamedTuple):
    """Prompt and continuation; or a line to translate, with its end, and the translation."""

    prompt: str
    text: str


Sampler = Callable[[Transformer, int], Sample]


def sampler(run: Run, source: Source, tokens: int) -> Sampler | None:
    """Return a function from weights and step to a sample of at most `tokens` tokens; None for a task that gives none.

    The prompt is the start of the first example of the evaluation set, and the draws depend on the run's seed and the
    step alone: samples can be compared, and a resumed run gives those of an uninterrupted one.
    """
    if isinstance(run.task, MaskedText):
        return _masked_sampler(run, run.task, source, tokens) if run.task.generates and tokens else None
    text, pairs = text_of(run.task), isinstance(run.task, PairTask)
    if text is None or not tokens:
        return None
    first = jax.tree.map(lambda leaf: np.asarray(leaf[0, :1]), source.evaluation())
    prompt_length = int(first.prefix[0]) if pairs else min(PROMPT, max(1, first.inputs.shape[1] // 2))
    prompt = first.inputs[:, :prompt_length].astype(np.int32)
    steps = tokens if run.model.max_length is None else min(tokens, run.model.max_length + 1 - prompt_length)
    if steps < 1:
        return None
    end = run.task.end if isinstance(run.task, PairTask) else None
    sampling = Sampling() if pairs else Sampling(temperature=TEMPERATURE)
    shown = text.decode((prompt if first.source is None else first.source)[0]) + ("\n" if pairs else "")
    key = _key(run)

    def sample(params: Transformer, step: int) -> Sample:
        output = generate(
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
        after = np.asarray(output.tokens)[0, : int(output.lengths[0])]
        return Sample(shown, text.decode(after) if pairs else text.decode([*prompt[0], *after])[len(shown) :])

    return sample


def _masked_sampler(run: Run, task: MaskedText, source: Source, tokens: int) -> Sampler | None:
    """Return a function that fills in masked tokens after the start of the first window; None without text."""
    text, window = text_of(task.text), np.asarray(source.evaluation().targets[0, 0])
    prompt = window[: min(PROMPT, len(window) // 2)]
    steps = min(tokens, len(window) - len(prompt))
    if text is None or not len(prompt):
        return None
    shown, sampling = text.decode(prompt), Sampling(temperature=TEMPERATURE)

    def sample(params: Transformer, step: int) -> Sample:
        key = jax.random.fold_in(_key(run), step)
        after = np.asarray(complete_text(params, run.model, task, prompt, key, steps=steps, sampling=sampling))
        return Sample(shown, text.decode([*prompt, *after])[len(shown) :])

    return sample


def _key(run: Run) -> Array:
    """Key of the samples of a run."""
    return fold_in_name(jax.random.key(run.seed), "samples")
