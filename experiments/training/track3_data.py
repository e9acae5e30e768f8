"""The token shards of modded-nanogpt as a folder that `TokenFiles` reads.

A shard begins with 256 numbers of 32 bits (20240520, 1, number of tokens, …); its tokens have 16 bits. All shards
fineweb_train_*.bin are the training side, in the order of their names; the validation side is what the benchmark
evaluates, the first 20 × 512 × 1,024 tokens of fineweb_val_000000.bin and one more.

Command: python experiments/training/track3_data.py data/fineweb10B data/fineweb10B/prepared
Cost: 5 s per billion tokens; the folder is as large as the shards.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

from flaxformer.data.token_files import FORMAT, SIDES, Description, describe_file, open_tokens
from flaxformer.system.digests import write_document
from flaxformer.system.errors import UserError

MAGIC, HEADER, END, VOCABULARY = 20240520, 256, 50256, 50257
VALIDATION = 20 * 512 * 1024 + 1


def tokens(shard: Path) -> np.ndarray:
    """Return the tokens of a shard, memory-mapped.

    Raises:
      UserError: another kind of file, or one that is cut short.
    """
    header = np.fromfile(shard, "<i4", HEADER)
    if header.size < HEADER or header[0] != MAGIC:
        raise UserError(f"{shard} begins with {header[:1]}; expected {MAGIC}, as a token shard does")
    content = np.memmap(shard, "<u2", mode="r", offset=4 * HEADER)
    if content.size != header[2]:
        raise UserError(f"{shard} has {content.size:,} tokens; expected {header[2]:,}, as its header says")
    return content


def prepare(shards: Path, output: Path) -> Description:
    """Write the folder, unless it is there; a document begins at each end-of-text token."""
    if output.exists():
        return open_tokens(str(output)).description
    unfinished = output.with_name(f".{output.name}.partial")
    unfinished.mkdir(parents=True, exist_ok=True)
    patterns = {"train": "fineweb_train_*.bin", "validation": "fineweb_val_000000.bin"}
    sources = {side: sorted(shards.glob(pattern)) for side, pattern in patterns.items()}
    counts, documents = {}, {}
    for side, files in sources.items():
        if not files:
            raise UserError(f"shards is '{shards}', which has no {patterns[side]}; expected the benchmark's shards")
        with (unfinished / f"{side}.bin").open("wb") as binary:
            for file in files:
                tokens(file)[: VALIDATION if side == "validation" else None].tofile(binary)
        content = np.memmap(unfinished / f"{side}.bin", "<u2", mode="r")
        starts = np.flatnonzero(content == END)
        starts = np.unique(np.concatenate([[0], starts, [content.size]])).astype(np.int64)
        np.save(unfinished / f"{side}.documents.npy", starts)
        counts[side], documents[side] = content.size, starts.size - 1
    names = [f"{side}{end}" for side in SIDES for end in (".bin", ".documents.npy")]
    described = {name: describe_file(unfinished / name) for name in names}
    description: Description = {
        "format": FORMAT,
        "pairs": False,
        "dtype": "uint16",
        "vocabulary": VOCABULARY,
        "end": END,
        "tokens": counts,
        "documents": documents,
        "sources": [file.name for files in sources.values() for file in files],
        "source_sha256": hashlib.sha256("".join(described[name]["sha256"] for name in names).encode()).hexdigest(),
        "recipe": {"script": "track3_data.py"},
        "files": described,
    }
    write_document(unfinished / "data.json", dict(description))
    unfinished.rename(output)
    return description


if __name__ == "__main__":
    written = prepare(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{sys.argv[2]}: {written['tokens']['train']:,} and {written['tokens']['validation']:,} tokens")
