"""Translation between two columns of a table."""

from flaxformer.core.struct import static
from flaxformer.data.pairs import Pair
from flaxformer.data.tokenizer import Tokenizer
from flaxformer.system.errors import shorten
from flaxformer.system.remembered import remembered
from flaxformer.system.wording import count_of
from flaxformer.tasks.examples import sample_evenly
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

    @remembered  # a config is small, and equal ones share an entry
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
        pairs, lines = self._within_limits(self.sides()["training"]), []
        for i in sample_evenly(len(pairs), rows)[0]:
            source, target, _ = pairs[i]
            padding = 2 * self.max_length - source.size - target.size
            lines.append(
                f"{shorten(self.spell(source))!r}, {source.size} tokens; target {shorten(self.spell(target))!r} and "
                f"the end, {target.size + 1} tokens; {'up to ' * (self.buckets > 1)}{padding} of padding"
            )
        return lines
