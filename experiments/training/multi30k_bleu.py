"""Translations of a Multi30k test set by every seed of the study in multi30k.py, and their BLEU.

The most likely tokens are taken, as in the published notebook. BLEU is that of lower-case words and signs without
further tokenisation (pip install sacrebleu); an unknown word counts as an error.

Command: python experiments/training/multi30k_bleu.py runs/multi30k_seeds [test_2016_flickr [lines]]
Output: in the study's folder, translations/SEED.en, and bleu.json with the score of each seed and their interval.
"""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import flaxformer
from flaxformer import PairedFiles
from flaxformer.jobs.translation import translate
from flaxformer.statistics.judgement import judge_equivalence

PUBLISHED, WITHIN = 36.52, 2.0


def words(text: str) -> str:
    """Return the words and signs of a line, in lower case, with spaces between them."""
    return " ".join(re.findall(r"\w+|[^\w\s]+", text.lower()))


def translated(folder: Path, seed: int, lines: list[bytes]) -> list[str]:
    """Return the translations by the kept weights of a seed, from its file if it has been written."""
    file = folder / "translations" / f"{seed}.en"
    if not file.exists():
        model = flaxformer.load(folder, seed=seed)
        assert model.run is not None
        assert isinstance(model.run.task, PairedFiles)
        output = list(translate(model.params, model.config, model.run.task, lines))
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in output))
    return file.read_text().split("\n")[: len(lines)]


def main(folder: Path, name: str = "test_2016_flickr", count: str = "1000") -> None:
    """Translate with every seed, and print and write the scores."""
    source, target = (Path(f"data/multi30k/{name}.{side}").read_bytes().split(b"\n") for side in ("de", "en"))
    lines, references = source[: int(count)], [words(line.decode()) for line in target[: int(count)]]
    seeds = sorted(row["seed"] for row in flaxformer.results(folder).table.to_dicts() if row["status"] == "done")
    outputs = {seed: translated(folder, seed, lines) for seed in seeds}
    if find_spec("sacrebleu") is None:
        print(f"{folder}/translations: {len(seeds)} seeds; for their BLEU, pip install sacrebleu and run this again")
        return
    from sacrebleu import corpus_bleu

    scores = {
        seed: corpus_bleu(
            [line.replace("[UNK]", "<unk>") for line in output], [references], tokenize="none", force=True
        ).score
        for seed, output in outputs.items()
    }
    judged = judge_equivalence([score - PUBLISHED for score in scores.values()], WITHIN)
    low, mean, high = (PUBLISHED + edge for edge in (judged.effect.low, judged.effect.mean, judged.effect.high))
    record = {"published": PUBLISHED, "within": WITHIN, "scores": scores, "mean": mean, "low": low, "high": high}
    (folder / "bleu.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"BLEU {mean:.2f} ({low:.2f} to {high:.2f}, 90 %) over {len(scores)} seeds; published {PUBLISHED}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
