"""Translation between two columns of a table."""

import functools

import jax
import numpy as np

from flaxformer.core.struct import static
from flaxformer.data.pairs import Pair
from flaxformer.data.tokenizer import Tokenizer
from flaxformer.system.errors import shorten
from flaxformer.system.wording import count_of
from flaxformer.tasks.examples import ExampleSource, sample_evenly
from flaxformer.tasks.pairs import PairTask
from flaxformer.tasks.rows import TextRowTask


class Pairs(TextRowTask, PairTask):
    """Sequence to sequence, such as translation: from the texts of one column of a table to those of another."""

    source: str = static()
    target: str = static()

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def target_column(self) -> str:
        return self.target

    @property
    def text_columns(self) -> tuple[str, ...]:
        return self.source, self.target

    @property
    def encoding(self) -> Tokenizer:
        return super().encoding

    @property
    def start(self) -> int:
        return self.encoding.vocabulary

    @functools.cache  # noqa: B019 (a config is small, and equal ones share an entry)
    def sides(self) -> dict[str, list[Pair]]:
        return {
            side: [Pair(self.encode(row, self.source), self.encode(row, self.target)) for row in rows]
            for side, rows in self.row_sides().items()
        }

    def fingerprint(self) -> dict[str, object]:
        return super().fingerprint() | self.encoding.fingerprint | self.counts()

    def notes(self) -> list[str]:
        counts = self.counts()
        dropped = count_of(counts["dropped_long"] + counts["dropped_empty"], "pair")
        return [
            *super().notes(),
            f"{count_of(counts['pairs'], 'pair')} used; {dropped} left out, with a text of more than max_length "
            f"{self.max_length} tokens, or of none.",
        ]

    def preview(self, rows: int = 3) -> list[str]:
        source = self.load()
        train = jax.device_get(source.train if isinstance(source, ExampleSource) else source.buckets[0])
        lines = []
        for i in sample_evenly(len(train.targets), rows)[0]:
            tokens, valid = train.inputs[i], train.valid[i]
            if train.source is not None:
                tokens, valid = train.source[i], train.source_valid[i]
            elif train.prefix is not None:
                tokens, valid = tokens[: train.prefix[i]], valid[: train.prefix[i]]
            padding = sum(int((~mask[i]).sum()) for mask in (train.valid, train.source_valid) if mask is not None)
            target = train.targets[i][np.asarray(train.weights[i]) > 0]
            lines.append(
                f"{shorten(self.spell(tokens[valid]))!r}: {padding} tokens of padding; target "
                f"{shorten(self.spell(target[:-1]))!r} and the end"
            )
        return lines
