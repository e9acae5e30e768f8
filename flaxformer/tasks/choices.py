"""Multiple choice and text classification by log-likelihood: named evaluations of language models.

With a context x and a choice y of n tokens and b bytes, log p(y | x) = Σ_t log p(y_t | x, y_<t). The model answers with
the choice of the highest score:

| column | score |
| --- | --- |
| NAME_accuracy | log p(y given x) |
| NAME_accuracy_tokens | log p(y given x) / n |
| NAME_accuracy_bytes | log p(y given x) / b |
| NAME_accuracy_unconditional | log p(y given x) − log p(y given x₀), with a context x₀ that asks nothing |

Of equal scores, the first choice counts. NAME_loss is the mean −log p of the tokens of the right choices. The division
by length is that of GPT-3 (Brown et al. 2020, section 2.4), which also divides by p(y | x₀).

The tokens of a choice are those of context and choice together after as many as the context has alone
(`data.tokenizer.encode_pair`). A context that does not fit into `length` tokens with its choice loses tokens at its
start; a choice that does not fit alone is an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flaxformer.components.heads import LossSum
from flaxformer.config import ModelConfig
from flaxformer.core.struct import static
from flaxformer.data.questions import Question, file_fingerprint, read_labelled, read_questions
from flaxformer.data.tokenizer import Tokenizer, encode_pair, read_tokenizer
from flaxformer.system.errors import UserError
from flaxformer.tasks.base import Task, model_length_problems, next_token_problems
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.evaluations import ERROR, Evaluation, EvaluationData, mean_scores
from flaxformer.tasks.overlap import Overlap, windows_in_text


class ChoiceData(EvaluationData):
    """Examples with one choice each, and the examples of each question's choices."""

    rows: Int[Array, "questions choices"]
    """Index of the example of each choice, among all examples of the batches."""
    byte_counts: Float[Array, "questions choices"]
    """Bytes of each choice; 0 for a question with fewer choices."""
    answers: Int[Array, "questions"]
    unconditional: Int[Array, "questions choices"] | None = None
    """Index of the example of each choice after the unconditional context."""

    def scores(self, sums: Mapping[str, LossSum], examples: LossSum) -> dict[str, Float[Array, ""]]:
        losses, tokens = (sums_per_example.reshape(-1) for sums_per_example in examples)
        likelihoods, lengths = -losses[self.rows], tokens[self.rows]
        scores = {
            "accuracy": likelihoods,
            "accuracy_tokens": likelihoods / jnp.maximum(lengths, 1),
            "accuracy_bytes": likelihoods / jnp.maximum(self.byte_counts, 1),
        }
        if self.unconditional is not None:
            scores["accuracy_unconditional"] = likelihoods + losses[self.unconditional]
        right = (jnp.arange(len(self.answers)), self.answers)
        answers = (-likelihoods[right], lengths[right])
        results = mean_scores({"loss": answers}, answers)
        for name, score in scores.items():
            results |= accuracy_of(name, score, self.byte_counts > 0, self.answers)
        return results


def accuracy_of(
    name: str,
    scores: Float[Array, "questions choices"],
    is_choice: Bool[Array, "questions choices"],
    answers: Int[Array, "questions"],
) -> dict[str, Float[Array, ""]]:
    """Return the fraction p of n questions whose answer has the highest score, and its standard error.

    The standard error is √(p (1 − p) / (n − 1)), NaN for a single question. Both are NaN if a score is NaN.
    """
    best = jnp.where(is_choice, scores, -jnp.inf).argmax(-1)
    is_known = ~jnp.isnan(jnp.where(is_choice, scores, 0)).any(-1)
    p, n = jnp.where(is_known, best == answers, jnp.nan).mean(), len(answers)
    return {name: p, f"{name}{ERROR}": jnp.sqrt(p * (1 - p) / (n - 1)) if n > 1 else jnp.float32(jnp.nan)}


class _Example(NamedTuple):
    """Tokens of a context and of a choice."""

    context: tuple[int, ...]
    choice: tuple[int, ...]


_FILLER = _Example((0,), ())
"""An example without scored tokens, which fills the last batch."""


class _Indices(dict[_Example, int]):
    """Index of each example, in the order in which they are first asked for."""

    def __missing__(self, example: _Example) -> int:
        return self.setdefault(example, len(self))


class ChoiceEvaluation(Evaluation):
    """Base of the evaluations of a language model by questions with several answers.

    length: number of tokens of context and choice, of which the last is not read; examples are padded to the longest.
    unconditional: context x₀ for NAME_accuracy_unconditional; None for no such score.
    batch_size: number of examples per batch, each a context with a choice.
    tokenizer: path of a tokenizer.json; None for bytes.
    """

    is_abstract: ClassVar[bool] = True

    length: int = static(128, at_least=1)
    unconditional: str | None = static(None)
    batch_size: int = static(16, at_least=1)
    tokenizer: str | None = static(None)

    def questions(self) -> tuple[Question, ...]:
        """Return the questions."""
        raise NotImplementedError(f"{type(self).__name__} does not define `questions`")

    @property
    def file(self) -> str:
        """Path of the file, for messages."""
        raise NotImplementedError(f"{type(self).__name__} does not define `file`")

    @property
    def rows(self) -> int:
        return self.batch_size

    @property
    def encoding(self) -> Tokenizer:
        """The tokenizer."""
        return read_tokenizer(self.tokenizer)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.unconditional is not None and not self.unconditional.strip():
            yield f"{type(self).__name__}.unconditional is {self.unconditional!r}; expected a text, or None"

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        yield from next_token_problems(model, self.encoding.vocabulary)
        yield from model_length_problems(model, self.length)
        if model.mask_pattern == "bidirectional":
            yield 'model.mask_pattern is "bidirectional"; expected "causal" or "prefix": the inputs contain the targets'
        if model.encoder is not None:
            yield "model.encoder is given; expected None, since the questions have no source"

    def metrics(self, has_accuracy: bool) -> tuple[str, ...]:
        always = ("loss", "accuracy", "accuracy_tokens", "accuracy_bytes")
        return always if self.unconditional is None else (*always, "accuracy_unconditional")

    def load(self) -> ChoiceData:
        questions, indices = self.questions(), _Indices()

        def table(context: str | None) -> Array:
            """The index of the example of each choice, after the question's own context or after this one."""
            rows = [
                [
                    indices[self._example(context or question.context, choice, question.line)]
                    for choice in question.choices
                ]
                for question in questions
            ]
            return jnp.asarray(_pad(rows), jnp.int32)

        rows, unconditional = table(None), None if self.unconditional is None else table(self.unconditional)
        return ChoiceData(
            batches=self._batches(list(indices)),
            rows=rows,
            byte_counts=jnp.asarray(
                _pad([[len(y.encode()) for y in question.choices] for question in questions]), jnp.float32
            ),
            answers=jnp.asarray([question.answer for question in questions], jnp.int32),
            unconditional=unconditional,
        )

    def _example(self, context: str, choice: str, line: int) -> _Example:
        """Return the tokens of a context, cut at its start, and of a choice."""
        where = f"{self.file}, line {line}"
        try:
            first, choice_tokens = encode_pair(self.encoding, context, choice)
        except UserError as error:  # of a vocabulary of characters
            raise UserError(f"{where}: {error}") from None
        if not len(first):
            raise UserError(f"{where}: the context is {context!r}; expected text before the choices")
        if not 0 < len(choice_tokens) <= self.length:
            raise UserError(
                f"{where}: choice {choice[:40]!r} has {len(choice_tokens)} tokens; expected 1 to length {self.length}"
            )
        kept = first[-(self.length + 1 - len(choice_tokens)) :]
        return _Example(tuple(kept.tolist()), tuple(choice_tokens.tolist()))

    def _batches(self, examples: Sequence[_Example]) -> Batch:
        """Return next-token examples [batches, batch_size, T], padded; only the choices are scored."""
        filled = [*examples, *[_FILLER] * (-len(examples) % self.batch_size)]
        tokens = _pad([[*example.context, *example.choice] for example in filled])
        starts = np.array([len(example.context) for example in filled])[:, None]
        ends = starts + np.array([len(example.choice) for example in filled])[:, None]
        place = np.arange(tokens.shape[1] - 1)[None]

        def batched_array(x: np.ndarray, kind: type) -> Array:
            return jnp.asarray(x.reshape(-1, self.batch_size, *x.shape[1:]), kind)

        return Batch(
            inputs=batched_array(tokens[:, :-1], np.int32),
            targets=batched_array(tokens[:, 1:], np.int32),
            weights=batched_array((place >= starts - 1) & (place < ends - 1), np.float32),
            valid=batched_array(place < np.maximum(ends - 1, 1), np.bool_),
            prefix=batched_array(starts[:, 0], np.int32),
            padding_is_behind=True,
        )

    def fingerprint(self) -> dict[str, object]:
        return file_fingerprint(self.file) | self.encoding.fingerprint | {"questions": len(self.questions())}

    def overlap(self, training: Task | None = None) -> Overlap:
        """Return the number of questions, and of those whose tokens stand in the training text with the right choice.

        The tokens are those of the context, as far as the model reads it, and of the choice, one after another. If the
        training data are not text with the same tokenizer, nothing is compared.
        """
        questions = self.questions()
        texts = [] if training is None else training.training_tokens(self.tokenizer)
        if not texts:
            return Overlap(len(questions), 0, 0)
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for question in questions:
            example = self._example(question.context, question.choices[question.answer], question.line)
            tokens = example.context + example.choice
            by_length.setdefault(len(tokens), []).append(tokens)
        in_training = 0
        for windows in by_length.values():
            hits = [windows_in_text(np.array(windows, np.int64), text.astype(np.int64)) for text in texts]
            in_training += int(np.logical_or.reduce(hits).sum())
        return Overlap(len(questions), in_training)


def _pad(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return rows as one array, padded with 0 on the right."""
    table = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table


class MultipleChoice(ChoiceEvaluation):
    """Multiple choice by log-likelihood, from a file of JSON lines: {"context": …, "choices": […, …], "answer": …}.

    answer is the index of the right choice, from 0, or its text. The module has the scores and the rule for long
    contexts.
    """

    path: str = static()

    @property
    def file(self) -> str:
        return self.path

    def questions(self) -> tuple[Question, ...]:
        return read_questions(self.path)


class TextClassification(ChoiceEvaluation):
    """Classification of texts by the likelihood of label words, from a file of JSON lines: {"text": …, "label": …}.

    template: the context, in which {text} stands for the text, such as "{text}\\nSentiment:".
    labels: the labels in the file.
    words: continuation for each label; by default a space and the label.
    """

    path: str = static()
    template: str = static()
    labels: tuple[str, ...] = static()
    words: tuple[str, ...] | None = static(None)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if "{text}" not in self.template:
            yield f"TextClassification.template is {self.template!r}; expected {{text}} in it"
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            yield f"TextClassification.labels is {self.labels}; expected at least 2 distinct labels"
        if self.words is not None and (len(self.words) != len(self.labels) or len(set(self.words)) < len(self.words)):
            yield f"TextClassification.words is {self.words}; expected a word of its own for each of {self.labels}"
        if self.words is not None and "" in self.words:
            yield f"TextClassification.words is {self.words}; expected texts that are not empty"

    @property
    def file(self) -> str:
        return self.path

    def questions(self) -> tuple[Question, ...]:
        words = tuple(f" {label}" for label in self.labels) if self.words is None else self.words
        return read_labelled(self.path, self.template, self.labels, words)
