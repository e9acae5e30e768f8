"""Law of padding: outputs and gradients with padding at any places are those of the sequence alone."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, PyTree

from flaxformer.laws.calls import random_key
from flaxformer.laws.embedded import embedded_config
from flaxformer.laws.inputs import NO_MASKS
from flaxformer.laws.law import (
    NOT_FINITE,
    Finding,
    compare,
    compare_trees,
    first_violated,
    law,
    not_applicable,
    violation,
)
from flaxformer.laws.subject import Subject

EXTRA = 3
"""Number of padding tokens that each sequence gets."""


@law(
    "padding",
    "padding changes no output and no gradient, before, between and behind the tokens, even where it is NaN",
    "where tokens are combined, first set x = jnp.where(context.valid[..., None], x, 0), if context.valid is not None; "
    "count real tokens (context.query_positions, or a cumulative sum of context.valid), not indices of the array",
)
def padding(subject: Subject) -> Finding:
    """Add padding with arbitrary contents to the embedded inputs and to the source."""
    limit = subject.config.max_length
    length = subject.long_vectors.shape[1]
    length = length if limit is None else min(length, limit - EXTRA)
    if length < 3:
        return not_applicable(f"the model reads at most {limit} tokens")
    return first_violated(itertools.chain(PaddingCheck(subject, length).findings(), _check_source_padding(subject)))


def padding_places(length: int) -> dict[str, list[int]]:
    """Return places of `EXTRA` padding tokens among `length` real ones, by their name in a message."""
    middle, after = length // 2, length
    outside = {"behind the tokens": [after, after + 1, after + 2], "before the tokens": [0, 1, 2]}
    if length < EXTRA:
        return outside
    return outside | {
        "before, between and behind the tokens": [0, middle, after + 2],
        "after the first token": [1, 2, 3],
        "between tokens, in the middle": [middle, middle + 1, middle + 2],
        "between the last tokens": [after - 2, after - 1, after],
        "before the tokens and between the last": [0, after, after + 1],
    }


class ProbeResult(NamedTuple):
    """Results of `Subject.probe`, on the host."""

    output: np.ndarray
    by_tokens: np.ndarray
    """Gradient by the embedded inputs."""
    by_weights: PyTree


class PaddingCheck:
    """Comparisons of a model's outputs and gradients with and without padding.

    Args:
      subject: the model.
      length: number of real tokens per row.
    """

    def __init__(self, subject: Subject, length: int) -> None:
        self.subject = subject
        self.vectors = subject.long_vectors[:, :length]
        inputs = np.asarray(subject.long_batch.inputs)
        self.tokens = inputs[:, :length] if subject.reads_tokens else np.zeros(self.vectors.shape[:2], np.int32)
        self.arguments = subject.source_of(subject.long_batch) | {"prefix": subject.long_batch.prefix}
        self.has_prefix = subject.config.mask_pattern == "prefix"

    def findings(self) -> Iterator[Finding]:
        """Yield the findings of all comparisons."""
        yield from self._compare_with_tokens_alone()
        yield from self._compare_whole_sequences()
        yield from self._compare_contents_in_training()

    def _probe(self, vectors: np.ndarray, valid: Bool[np.ndarray, "rows T"], fill: float) -> ProbeResult:
        counted = valid if self.subject.has_output_per_token else np.any(valid, axis=-1)
        tokens = self._place(self.tokens, valid, 1)
        return ProbeResult(*jax.device_get(self.subject.probe(vectors, tokens, valid, counted, fill, **self.arguments)))

    def _layouts(self) -> Iterator[tuple[list[str], Bool[np.ndarray, "rows T"]]]:
        """Yield names and masks of padding for all rows, until each kind of padding was in some row.

        The places of padding differ from row to row, so that a mask of another row is noticed. A prefix counts the
        first entries of the array, so that its sequences have padding behind them alone.
        """
        rows, length = self.vectors.shape[:2]
        places = padding_places(length)
        kinds = list(places)[: 1 if self.has_prefix else None]
        for start in range(0, len(kinds), rows):
            names = [kinds[(start + row) % len(kinds)] for row in range(rows)]
            valid = np.ones((rows, length + EXTRA), bool)
            for row, name in enumerate(names):
                valid[row, places[name]] = False
            yield names, valid

    def _pad(self, valid: Bool[np.ndarray, "rows T"], fill: float) -> np.ndarray:
        """Return the vectors at the real places of a mask, and a number at the others."""
        return self._place(self.vectors, valid, fill)

    @staticmethod
    def _place(x: np.ndarray, valid: Bool[np.ndarray, "rows T"], fill: float) -> np.ndarray:
        """Return the entries of rows at the first real places of a mask, and a number at the others."""
        full = np.full((*valid.shape, *x.shape[2:]), fill, x.dtype)
        for row, real in enumerate(valid):
            places = np.flatnonzero(real)
            full[row, places] = x[row, : len(places)]
        return full

    def _compare_with_tokens_alone(self) -> Iterator[Finding]:
        """Add padding, also with NaN as its embeddings, and with NaN in every layer."""
        rows, length = self.vectors.shape[:2]
        every = np.ones((rows, length), bool)
        alone = self._probe(self.vectors, every, 0.0)
        for names, valid in self._layouts():
            for vector, fill, contents in ((0.0, 3.0, ""), (np.nan, 0.0, ", whose embeddings are NaN,")):
                probe = self._probe(self._pad(valid, vector), valid, fill)
                yield from self._compare_rows(alone, probe, valid, names, contents)
                what = f"gradients without padding and with {EXTRA} tokens{contents or ','}"
                yield compare_trees(alone.by_weights, probe.by_weights, what, self.subject.tolerance)
            nan_layers = self._probe(self._pad(valid, 0.0), valid, np.nan)
            contents = ", which are NaN in every layer,"
            yield from self._compare_rows(alone, nan_layers, valid, names, contents, with_gradient=False)

    def _compare_rows(
        self,
        alone: ProbeResult,
        probe: ProbeResult,
        valid: Bool[np.ndarray, "rows T"],
        names: list[str],
        contents: str,
        with_gradient: bool = True,
    ) -> Iterator[Finding]:
        """Compare outputs for real tokens, and gradients by them, row by row."""
        allowed, is_per_token = self.subject.tolerance, self.subject.has_output_per_token
        for row, name in enumerate(names):
            what = f"without padding and with {EXTRA} tokens {name}{contents}"
            padded = probe.output[row][valid[row]] if is_per_token else probe.output[row]
            yield compare(alone.output[row], padded, f"outputs {what}", allowed)
            if with_gradient:
                padded = probe.by_tokens[row][valid[row]]
                yield compare(alone.by_tokens[row], padded, f"gradients by real tokens {what}", allowed)

    def _compare_whole_sequences(self) -> Iterator[Finding]:
        """Add a sequence of nothing but padding: outputs and gradients are finite, and its contents have no effect."""
        [_, valid], *_ = self._layouts()
        valid = valid.copy()
        valid[-1] = False
        full = self._pad(valid, 1.0)
        zeros, other = (self._probe(full, valid, fill) for fill in (0.0, 3.0))
        where = "in all of a sequence"
        if not all(np.all(np.isfinite(x)) for x in jax.tree.leaves((zeros.by_tokens[valid], zeros.by_weights))):
            yield violation(f"gradients with padding {where} are not finite", NOT_FINITE)
        if not np.all(np.isfinite(zeros.output)):
            yield violation(f"outputs with padding {where} are not finite", NOT_FINITE)
        is_compared = valid if self.subject.has_output_per_token else valid.any(-1)
        what = f"outputs with other contents of padding {where}"
        yield compare(zeros.output[is_compared], other.output[is_compared], what, self.subject.tolerance)
        what = f"gradients with other contents of padding {where},"
        yield compare_trees(zeros.by_weights, other.by_weights, what, self.subject.tolerance)

    def _compare_contents_in_training(self) -> Iterator[Finding]:
        """Change the contents of padding in training, at the same length, since random draws depend on the shape."""
        subject = self.subject
        [_, valid], *_ = self._layouts()
        full = self._pad(valid, 0.0)
        tokens = subject.long_batch.replace(inputs=self._place(self.tokens, valid, 1))
        call = NO_MASKS | {"key": random_key(), "valid": valid} | self.arguments | subject.embedded_call(full, tokens)
        configs = [embedded_config(subject.config, fill) for fill in (0.0, 3.0, np.nan)]
        first, *other_outputs = (np.asarray(subject.output(**call | {"config": config})) for config in configs)
        is_compared = valid if subject.has_output_per_token else valid.any(-1)
        for other in other_outputs:
            what = "outputs in training with different contents of padding"
            yield compare(first[is_compared], other[is_compared], what, subject.tolerance)


def _check_source_padding(subject: Subject) -> Iterator[Finding]:
    """Add padding before, within and behind the source, and compare the outputs."""
    if "source" not in subject.source:
        return
    encoder_inputs = np.asarray(subject.source["source"])
    source_valid = np.asarray(subject.source.get("source_valid", np.ones(encoder_inputs.shape[:2], bool)))
    encoder, length = subject.config.encoder, encoder_inputs.shape[1]
    if encoder is None or (encoder.max_length is not None and length + EXTRA > encoder.max_length):
        return
    expected = np.asarray(subject.output(source_valid=source_valid))
    for where, places in padding_places(length).items():
        kept = np.setdiff1d(np.arange(length + EXTRA), places)
        for fill in (encoder_inputs[:, :1], encoder_inputs[:, -1:] * 0):
            wide = np.repeat(fill, length + EXTRA, axis=1)
            valid = np.zeros((len(encoder_inputs), length + EXTRA), bool)
            wide[:, kept], valid[:, kept] = encoder_inputs, source_valid
            output = subject.output(source=wide, source_valid=valid)
            what = f"outputs with padding {where} of the source and without"
            yield compare(expected, output, what, subject.tolerance)
