"""Vocabulary of words: a tokenizer.json of all lower-case words that occur at least twice in some files.

A word is a sequence of letters and digits, or of other signs, and ends at a space; rarer words are [UNK].

Command: python experiments/training/words.py data/multi30k/words.json data/multi30k/train.de data/multi30k/train.en
"""

import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers


def words(files: list[str], at_least: int = 2) -> Tokenizer:
    """Return a tokenizer of the words of files, the most frequent first."""
    model = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    model.normalizer = normalizers.Lowercase()
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=2**31, min_frequency=at_least, special_tokens=["[UNK]"], show_progress=False
    )
    model.train(files, trainer)
    return model


if __name__ == "__main__":
    output, *texts = sys.argv[1:]
    found = words(texts)
    found.save(output)
    print(f"{output}: {found.get_vocab_size():,} words")
