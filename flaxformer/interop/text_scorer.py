"""Likelihoods of texts and continuations of texts by a trained language model, in batches of few lengths.

Requests are sorted by length and padded to few lengths, so that few programs are compiled. Contexts that are too long
lose tokens at their start. The likelihood of a text without a context is that after the `prefix`, since a model of
bytes has no token for the start of a text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from flaxformer.data.tokenizer import encode_pair
from flaxformer.model import Sampling, stream
from flaxformer.model.weights import Transformer
from flaxformer.system.errors import UserError
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.task_tokenizer import text_of
from flaxformer.training.loss import forward
from flaxformer.training.run import Run

SHORTEST = 16
"""Smallest number of tokens to which a batch is padded; longer ones are padded to a power of two."""
NEW_TOKENS = 256
"""Number of tokens that are generated if a request does not say how many; or half of `length`, if that is less."""


GenerationSettings = Mapping[str, object]
"""GenerationSettings of a request to generate, by name."""


class Scored(NamedTuple):
    """Log-likelihood of a continuation, and whether every token of it is the most likely one."""

    log_likelihood: float
    is_greedy: bool


class _Request(NamedTuple):
    context: list[int]
    continuation: list[int]


class TextScorer:
    """Likelihoods of texts, and continuations of texts, by a trained language model.

    Args:
      params: weights of the model, as `read_weights` returns them.
      run: run of the weights; its task gives the tokenizer.
      length: largest number of tokens that the model reads at a time; by default that of the task.
      batch_size: number of texts that are computed together.
      prefix: text whose last token is the context of a text without one.
      seed: seed of generated texts, where a request asks for a temperature.

    Raises:
      UserError: the task is not text, or the model cannot read `length` tokens.
    """

    def __init__(
        self,
        params: Transformer,
        run: Run,
        *,
        length: int | None = None,
        batch_size: int = 16,
        prefix: str = "\n",
        seed: int = 0,
    ) -> None:
        tokenizer = text_of(run.task)
        if tokenizer is None or run.model.encoder is not None:
            raise UserError(f"task is {type(run.task).__name__}; expected a task of text, which the model continues")
        self.params, self.run, self.tokenizer = params, run.without_init, tokenizer
        self.length = run.task.sequence_length if length is None else length
        longest = run.model.max_length
        if self.length < 2 or (longest is not None and self.length > longest):
            most = "" if longest is None else f" and at most max_length {longest}"
            raise UserError(f"length is {self.length}; expected at least 2{most}")
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; expected at least 1")
        self.batch_size, self.seed = batch_size, seed
        self.prefix = tokenizer.encode(prefix.encode()).tolist()[-1:]
        if not self.prefix:
            raise UserError(f"prefix is {prefix!r}, which has no tokens; expected a text")
        self._score = jax.jit(_score)

    def log_likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Scored]:
        """Return log p(continuation | context) for pairs of both; tokens as `data.tokenizer.encode_pair` has them."""
        requests = []
        for context, continuation in pairs:
            first, tokens = encode_pair(self.tokenizer, context, continuation)
            requests.append(_Request(first.tolist() or self.prefix, tokens.tolist()))
        return self._score_requests([self._cut(request) for request in requests])

    def rolling_log_likelihoods(self, texts: Sequence[str]) -> list[float]:
        """Return log p of whole texts, each token predicted once from up to `length` tokens before it.

        A text is divided into windows of `length` predicted tokens. The last window has full context and scores only
        the tokens that no other window has.
        """
        windows = [list(self._windows(self.tokenizer.encode(text.encode(errors="replace")).tolist())) for text in texts]
        scored = iter(self._score_requests([window for text_windows in windows for window in text_windows]))
        return [sum(next(scored).log_likelihood for _ in text_windows) for text_windows in windows]

    def continuations(self, contexts: Sequence[str], settings: GenerationSettings) -> list[str]:
        """Return a continuation of each context, up to the first of the texts of `until`, which is left out.

        Args:
          contexts: the texts to continue.
          settings: until (a text or several), max_gen_toks, and with do_sample, temperature, top_k and top_p; greedy
            otherwise.
        """
        stops = settings.get("until")
        until = [stops] if isinstance(stops, str) else [str(stop) for stop in cast(Sequence[object], stops or ())]
        steps = int(_number(settings, "max_gen_toks") or min(NEW_TOKENS, self.length // 2))
        steps = max(1, min(steps, self.length - 1))
        prompts = [self.tokenizer.encode(text.encode(errors="replace")).tolist() or self.prefix for text in contexts]
        prompts = [prompt[-(self.length - steps) :] for prompt in prompts]
        by_index: dict[int, str] = {}
        for number, batch in enumerate(self._batches([len(prompt) for prompt in prompts])):
            texts = self._continue([prompts[i] for i in batch], steps, _sampling(settings), until, number)
            by_index |= dict(zip(batch, texts, strict=True))
        return [by_index[i] for i in range(len(contexts))]

    def _continue(
        self, prompts: Sequence[list[int]], steps: int, sampling: Sampling, until: Sequence[str], number: int
    ) -> list[str]:
        """Return the continuations of the prompts of one batch, padded on the left."""
        width = min(self._padded_length(max(map(len, prompts))), self.length - steps)
        filled = [*prompts, *[prompts[-1]] * (self.batch_size - len(prompts))]
        tokens = np.array([[0] * (width - len(row)) + row for row in filled], np.int32)
        valid = np.array([[False] * (width - len(row)) + [True] * len(row) for row in filled])
        key = None if sampling.temperature is None else jax.random.fold_in(jax.random.key(self.seed), number)
        ids = np.zeros((len(filled), 0), np.int32)
        texts: list[str] = []
        for piece in stream(self.params, self.run.model, tokens, steps=steps, valid=valid, sampling=sampling, key=key):
            ids = np.concatenate([ids, np.asarray(piece.tokens)], axis=1)
            texts = [self.tokenizer.decode(row_ids) for row_ids in ids[: len(prompts)]]
            if until and all(any(stop in text for stop in until) for text in texts):
                break
        return [_before(text, until) for text in texts]

    def _cut(self, request: _Request) -> _Request:
        """Return the request without the first tokens of a context that is too long.

        Raises:
          UserError: the continuation alone is too long.
        """
        context, continuation = request
        if len(continuation) > self.length:
            raise UserError(f"a continuation has {len(continuation)} tokens; expected at most length {self.length}")
        return _Request(context[-(self.length + 1 - len(continuation)) :], continuation)

    def _windows(self, tokens: list[int]) -> Iterator[_Request]:
        """Yield contexts and continuations that together predict each token once."""
        whole = [*self.prefix, *tokens]
        for first in range(0, len(tokens), self.length):
            last = min(first + self.length, len(tokens))
            begin = max(0, last - self.length)  # of the tokens that are read; 0 is the prefix
            yield _Request(whole[begin : first + 1], whole[first + 1 : last + 1])

    def _score_requests(self, requests: Sequence[_Request]) -> list[Scored]:
        by_index: dict[int, Scored] = {}
        for batch in self._batches([len(request.context) + len(request.continuation) - 1 for request in requests]):
            batch_requests = [requests[i] for i in batch]
            values = jax.device_get(self._score(self.params, self.run, self._batch(batch_requests)))
            for i, total, is_greedy in zip(batch, *values, strict=False):
                by_index[i] = Scored(float(total), bool(is_greedy))
        return [by_index[i] for i in range(len(requests))]

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield the indices of texts in batches of similar length, the longest first, so that memory runs out early."""
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        yield from (order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size))

    def _padded_length(self, tokens: int) -> int:
        return min(self.length, max(SHORTEST, 1 << (tokens - 1).bit_length()))

    def _batch(self, requests: Sequence[_Request]) -> Batch:
        """Return next-token examples, padded on the right and with rows that are not scored."""
        filled = [*requests, *[_Request([0], [])] * (self.batch_size - len(requests))]
        width = self._padded_length(max(len(request.context) + len(request.continuation) - 1 for request in filled))
        tokens = np.zeros((self.batch_size, width + 1), np.int32)
        for row, (context, continuation) in zip(tokens, filled, strict=True):
            row[: len(context) + len(continuation)] = [*context, *continuation]
        starts = np.array([len(request.context) for request in filled])[:, None]
        ends = starts + np.array([len(request.continuation) for request in filled])[:, None]
        place = np.arange(width)[None]
        return Batch(
            inputs=jnp.asarray(tokens[:, :-1]),
            targets=jnp.asarray(tokens[:, 1:]),
            weights=jnp.asarray((place >= starts - 1) & (place < ends - 1), jnp.float32),
            valid=jnp.asarray(place < np.maximum(ends - 1, 1)),
            prefix=jnp.asarray(starts[:, 0], jnp.int32),
            padding_is_behind=True,
        )


def _score(params: Transformer, run: Run, batch: Batch) -> tuple[Float[Array, " B"], Bool[Array, " B"]]:
    """Return the log-likelihood of the scored targets of each row, and whether all are the most likely tokens."""
    output = forward(params, run, batch).output
    rows = (output[:, None], batch.targets[:, None], batch.weights[:, None])
    losses, _ = jax.vmap(run.model.head.loss)(*rows)
    return -losses, ((output.argmax(-1) == batch.targets) | (batch.weights == 0)).all(-1)


def _number(settings: GenerationSettings, name: str) -> float:
    """Return a number of a request; 0 without one."""
    value = settings.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _sampling(settings: GenerationSettings) -> Sampling:
    """Return the rule of a request: greedy, unless it asks for samples with a temperature."""
    temperature = _number(settings, "temperature")
    if not settings.get("do_sample") or temperature <= 0:
        return Sampling()
    top_k, top_p = int(_number(settings, "top_k")) or None, _number(settings, "top_p") or None
    return Sampling(temperature=temperature, top_k=top_k, top_p=top_p)


def _before(text: str, until: Sequence[str]) -> str:
    """Return a text up to the first of some others."""
    return text[: min((place for stop in until if (place := text.find(stop)) >= 0), default=len(text))]
