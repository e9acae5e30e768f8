"""Small stand-ins for the data of all items, with which they run on a CPU in a tiny form."""

import re
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]


def stand_ins(folder: Path) -> None:
    """Write small texts in place of the data, and a link to the experiments."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    data = folder / "data"
    (data / "multi30k").mkdir(parents=True)
    lines = [f"{number % 7} dogs run over the {word}." for number in range(40) for word in ("hill", "road", "sand")]
    (data / "shakespeare.txt").write_text("\n".join(lines * 4))
    for name in ("train", "val", "test_2016_flickr"):
        for side in ("de", "en"):
            (data / "multi30k" / f"{name}.{side}").write_text("\n".join(lines) + "\n")
    words = sorted({word for line in lines for word in re.findall(r"\w+|[^\w\s]+", line)})
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.save(str(data / "multi30k" / "words.json"))
    shards = data / "fineweb10B"
    shards.mkdir()
    for name in ("fineweb_val_000000", "fineweb_train_000001"):
        header, tokens = [20240520, 1, 400, *[0] * 253], [50256, *range(399)]
        content = b"".join(n.to_bytes(4, "little") for n in header) + b"".join(n.to_bytes(2, "little") for n in tokens)
        (shards / f"{name}.bin").write_bytes(content)
