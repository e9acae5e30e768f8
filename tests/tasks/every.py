"""A tiny instance of every task, and the files that some tasks read."""

import json
from pathlib import Path

import jax
import numpy as np

from flaxformer.catalog import (
    Brevo,
    Compression,
    Depo,
    FillInTheMiddle,
    FuzzyRecall,
    InContextRecall,
    InContextRegression,
    Lano,
    Mano,
    MaskedDiffusion,
    Memorization,
    ModularCounting,
    MultiQueryRecall,
    NeedleRetrieval,
    PermutationComposition,
    SelectiveCopying,
)
from flaxformer.data import prepare
from flaxformer.tasks import (
    AssociativeRecall,
    Copy,
    Digits,
    Images,
    Induction,
    MaskedTokens,
    ModularAddition,
    PairedFiles,
    PairedTokens,
    Pairs,
    Reverse,
    ScaledIndex,
    Sort,
    SpanCorruption,
    StandardLibrary,
    TableRows,
    TextFiles,
    TextLabels,
    TextPair,
    TokenFiles,
    TwoTargetAverage,
)

TEXT = b"the quick brown fox jumps over the lazy dog; " * 40
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "so", "do", "we"]
SIZES = {"batch_size": 3, "evaluation_batches": 2}


def sentences(seed, lines=64):
    """Return lines of 1 to 4 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 5))) for _ in range(lines)]


def word_tokenizer(words, gap=0):
    """Return a tokenizer.json whose tokens are words, with a gap in the ids, and with truncation."""
    ids = {"?": 0} | {word: i + 1 + gap * (i > 3) for i, word in enumerate(words)}
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    model = {"type": "WordLevel", "vocab": ids, "unk_token": "?"}
    start = {"id": ids["?"], "content": "?", "single_word": False, "lstrip": False, "rstrip": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": truncation,
            "padding": None,
            "added_tokens": [start | {"normalized": False, "special": True}],
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": model,
        }
    )


def table_lines(seed, rows=40):
    """Return the lines of a table with texts, labels, numbers, categories and groups."""
    rng = np.random.default_rng(seed)
    texts, others = sentences(seed, rows), sentences(seed + 7, rows)
    columns = zip(texts, others, rng.integers(0, 9, (rows, 6)).tolist(), strict=True)
    lines = [
        f"{text} {i},{other},{'xyz'[i % 3]},{i % 2},{a / 4},{b},{'pqr'[c % 3]},{'st'[d % 2]},{e}"
        for i, (text, other, (a, b, c, d, e, _)) in enumerate(columns)
    ]
    return ["text,other,label,stars,size,age,colour,shape,author", *lines]


def write_files(folder: Path) -> Path:
    """Write two files of every kind that a task reads."""
    for name, number in (("one", 0), ("two", 1)):
        (folder / name).mkdir()
        for i in range(30):
            (folder / name / f"{i}.txt").write_text(f"the {name} fox {i * 7 + number} ; " * 20)
            (folder / name / f"{i}.md").write_text(f"# the {name} dog {i * 7 + number}\n" * 20)
        lines = sentences(number)
        (folder / f"{name}.en").write_text("\n".join(lines))
        (folder / f"{name}.de").write_text("\n".join(line.upper()[::-1] for line in lines))
        prepare(folder / f"{name}.en", folder / f"{name}.pairs", target=folder / f"{name}.de", validation_tenths=2)
        (folder / f"{name}.json").write_text(word_tokenizer(WORDS[number:]))
        rng = np.random.default_rng(number)
        pictures = {"images": rng.integers(0, 256, (23, 3, 5), np.uint8), "labels": np.arange(23) % 4}
        np.savez(folder / f"{name}.npz", **pictures)
        prepare(folder / name, folder / f"{name}.tokens")
        (folder / f"{name}.csv").write_text("\n".join(table_lines(number)) + "\n")
    (folder / "text.txt").write_bytes(TEXT)
    return folder


def every_task(files: Path):
    """Return one instance of each task, with another value of every field, or values of several fields for it."""
    own = {"batch_size": 4, "evaluation_batches": 3, "evaluation_batch_size": 2}
    order = {"symbols": 7, "length": 5, "form": "paired"}
    words, other_words = str(files / "one.json"), str(files / "two.json")
    text = TextFiles(path=str(files / "one"), length=11, **SIZES)
    pairs = PairedFiles(source_path=str(files / "one.en"), target_path=str(files / "one.de"), max_length=19, **SIZES)
    tokens = TokenFiles(path=str(files / "one.tokens"), length=11, **SIZES)
    table, other_table = str(files / "one.csv"), str(files / "two.csv")
    rows = {"path": table, "validation_tenths": 2, **SIZES}
    other_rows = {"path": other_table, "validation_path": other_table, "test_path": other_table, "group": "author"}
    other_rows |= own | {"validation_tenths": 4, "test_tenths": 3}
    texts = {"tokenizer": words, "bpe_vocabulary": 263, "max_length": 23}
    few = TextFiles(path=str(files / "one"), length=11)
    return {
        StandardLibrary(length=11, **SIZES): own
        | {"length": 13, "tokenizer": words, "training_size": 1000}
        | {"bits_per_byte": True},
        text: own
        | {"length": 13, "tokenizer": words, "path": str(files / "two"), "pattern": "**/*.md", "validation_tenths": 5}
        | {"training_size": 101, "bits_per_byte": True},
        tokens: own | {"length": 13, "path": str(files / "two.tokens"), "pack": "documents", "bits_per_byte": True},
        MaskedTokens(text=few, **SIZES): own
        | {"text": few.replace(length=13), "rate": 0.5, "masked": 0.1, "random": 0.0},
        SpanCorruption(text=few, **SIZES): own | {"text": few.replace(length=13), "density": 0.5, "mean_span": 1.0},
        MaskedDiffusion(text=few, **SIZES): own | {"text": few.replace(length=13)},
        FillInTheMiddle(text=few, **SIZES): own | {"text": few.replace(length=13), "rate": 0.5, "suffix_first": 0.1},
        pairs: own
        | {"source_path": str(files / "two.en"), "target_path": str(files / "two.de"), "validation_tenths": 5}
        | {"validation": TextPair(source_path=str(files / "two.en"), target_path=str(files / "two.de"))}
        | {"max_length": 23, "tokenizer": other_words, "form": "joined", "buckets": 3},
        PairedTokens(path=str(files / "one.pairs"), max_length=19, **SIZES): own
        | {"path": str(files / "two.pairs"), "max_length": 23, "form": "joined", "buckets": 3},
        Copy(symbols=5, length=4, **SIZES): own | order,
        Reverse(symbols=5, length=4, **SIZES): own | order,
        Sort(symbols=5, length=4, **SIZES): own | order,
        AssociativeRecall(pairs=3, queries=2, keys=5, values=7, **SIZES): own
        | {"pairs": 2, "queries": 3, "keys": 6, "values": 5},
        Induction(symbols=5, length=7, **SIZES): own | {"symbols": 6, "length": 8},
        ModularAddition(modulus=7, fraction=0.4, **SIZES): own | {"modulus": 11, "fraction": 0.7, "split_seed": 1},
        ScaledIndex(length=5, width=3, **SIZES): own | {"length": 7, "width": 2, "normalise": False},
        TwoTargetAverage(items=5, key_width=3, value_width=2, **SIZES): own
        | {"items": 7, "key_width": 2, "value_width": 3},
        MultiQueryRecall(symbols=16, length=16, pairs=2, **SIZES): own
        | {"symbols": 18, "length": 18, "pairs": 3, "power": 1.0, "random_blanks": True},
        InContextRecall(symbols=9, length=12, noise=3, rate=0.4, **SIZES): own
        | {"symbols": 11, "length": 14, "noise": 2, "rate": 0.8},
        FuzzyRecall(symbols=9, length=16, motif=2, **SIZES): own | {"symbols": 11, "length": 18, "motif": 3},
        SelectiveCopying(symbols=7, length=17, copied=3, **SIZES): own
        | {"symbols": 8, "length": 19, "copied": 4, "scattered": False},
        Memorization(symbols=11, length=8, **SIZES): own | {"symbols": 13, "length": 10, "table": 1},
        Compression(symbols=5, length=7, **SIZES): own | {"symbols": 7, "length": 9},
        PermutationComposition(points=3, length=7, **SIZES): own | {"points": 4, "even": True, "length": 8},
        ModularCounting(modulus=3, length=7, **SIZES): own
        | {"modulus": 2, "steps": (0, 2), "length": 8, "everywhere": True},
        InContextRegression(width=3, points=5, **SIZES): own | {"width": 2, "points": 6},
        NeedleRetrieval(keys=7, digits=3, sentences=5, words=2, **SIZES): own
        | {"keys": 8, "needles": 2, "digits": 2, "sentences": 6, "words": 3, "haystack": "needles"},
        Depo(nodes=7, letters=3, longest=3, steps=3, questions=2, **SIZES): own
        | {"nodes": 8, "letters": 4, "shortest": 2, "longest": 2, "steps": 4, "questions": 3},
        Brevo(nodes=7, letters=3, longest=3, **SIZES): own | {"nodes": 8, "letters": 4, "shortest": 2, "longest": 2},
        Mano(operations=3, modulus=7, **SIZES): own | {"operations": 4, "modulus": 5, "synonyms": False},
        Lano(layers=3, **SIZES): own
        | {"layers": 2, "symbols": 4, "fewest": 2, "most": 3, "shortest": 1, "longest": 2, "grammar": 1},
        TextLabels(text="text", label="label", max_length=19, **rows): other_rows
        | texts
        | {"text": "other", "label": "stars"},
        Pairs(source="text", target="other", max_length=19, **rows): other_rows
        | texts
        | {"source": "label", "target": "label", "form": "joined", "buckets": 3},
        TableRows(numbers=("size", "age"), categories=("colour",), label="label", **rows): other_rows
        | {
            "numbers": ("size",),
            "categories": ("shape",),
            "label": "stars",
            "target": {"target": "stars", "label": None},
        },
        Digits(**SIZES): own | {"validation_tenths": 3, "split_seed": 1},
        Images(path=str(files / "one.npz"), **SIZES): own
        | {"path": str(files / "two.npz"), "validation_tenths": 3, "split_seed": 1},
    }


def shapes(task):
    """Return the shapes of all data of a task."""
    source = task.load()
    parts = jax.eval_shape(lambda: (source, source.batch(jax.random.key(0), 0), source.evaluation()))
    return [leaf.shape for leaf in jax.tree.leaves(parts)]


def some(task):
    """Return the data of a task and a batch."""
    source = task.load()
    return source, source.batch(jax.random.key(0), 0)


def same(one, other):
    """True if two trees have equal arrays."""
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))
