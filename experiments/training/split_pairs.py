"""Split a file of pairs (one per line: source, tab, target, further columns) into one text file per language.

A tenth of the source sentences, chosen by their hash, is the test set, each with its first translation; all pairs of
the other sentences are the training set, so no test sentence is trained on in any translation. A byte-level BPE
tokenizer is trained on both languages of the training set.

Command: python experiments/training/split_pairs.py data/deu.txt data/tatoeba
writes train.source, train.target, test.source, test.target and tokenizer.json to data/tatoeba.
"""

import sys
from pathlib import Path

from flaxformer.data.corpus import tenth
from flaxformer.data.tokenizer import train_bpe

VOCABULARY = 4000


def split(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs of each side, "train" and "test"."""
    rows = [line.split("\t") for line in text.splitlines()]
    pairs = [(row[0], row[1]) for row in rows if len(row) > 1]
    held_out = {source for source, _ in pairs if tenth(source.encode()) == 0}
    first = {source: target for source, target in reversed(pairs) if source in held_out}
    return {"train": [pair for pair in pairs if pair[0] not in held_out], "test": list(first.items())}


if __name__ == "__main__":
    file, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    sides = split(file.read_text())
    for side, pairs in sides.items():
        for language, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            (folder / f"{side}.{language}").write_text("\n".join(lines) + "\n")
        print(f"{len(pairs):,} pairs to {side}")
    both = [line for pair in sides["train"] for line in pair]
    (folder / "tokenizer.json").write_bytes(train_bpe(both, VOCABULARY))
