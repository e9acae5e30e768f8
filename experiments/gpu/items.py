"""The items that are run on a GPU, in order of worth, each with its command, its time, and why it has its place.

Times are estimated from the tables of one H200 in `experiments/benchmarks/README.md`.
"""

import dataclasses
from pathlib import Path

RESULTS = Path("runs/gpu")


@dataclasses.dataclass(frozen=True)
class Item:
    """Work for a GPU.

    commands: run one after another; "flaxformer" and "python" are those of this environment.
    minutes: time limit: the time that it is expected to take on one H200, and a third of that more.
    least: minutes below which it is not begun, since it would bring nothing back.
    folder: its results.
    needs: files without which it is not begun.
    quick: words added to each command for a tiny form on a CPU.
    quick_minutes: time limit of that form.
    processes: copies of the command that share the work and the GPU, so that one compiles while another trains.
    """

    name: str
    commands: tuple[str, ...]
    minutes: float
    least: float
    folder: Path
    quick: tuple[str, ...]
    quick_minutes: float = 20
    needs: tuple[str, ...] = ()
    processes: int = 1


TINY = "training.steps=4 training.evaluate_every=2 model.layers=1 model.d_model=16 model.attention.heads=2"
TINY_PAIRS = (
    "task.batch_size=8 task.evaluation_batches=1 model.vocabulary=64 model.feed_forward.d_ff=16 "
    "model.encoder.layers=1 model.encoder.d_model=16 model.encoder.attention.heads=2 model.encoder.vocabulary=64"
)
MULTI30K = tuple(f"data/multi30k/{name}" for name in ("words.json", "train.de", "val.de", "test_2016_flickr.de"))


def item(name: str, *commands: str, minutes: float, least: float, **more: object) -> Item:
    """Return an item whose results are in a folder of its name, {folder} in its commands."""
    folder = RESULTS / name
    return Item(name, tuple(c.format(folder=folder) for c in commands), minutes, least, folder, **more)  # type: ignore[arg-type]


ITEMS = (
    # First what is short, certain to end, and judged by a rule: published numbers that a CPU cannot reach. 2.8e16 FLOP
    # in two groups of four seeds: at 0.4 µs per token of a model of this size (GPT-2 takes 1.8 µs, with twice the
    # layers and twice the width) 3 min, and 1 min to compile. A group that ends is kept, so that half of the time gives
    # four seeds, from which a verdict is possible.
    item(
        "shakespeare",
        "flaxformer run experiments/training/shakespeare_gpu.py --group-size 4 --output {folder}",
        minutes=5.5,
        least=2.5,
        needs=("data/shakespeare.txt",),
        quick=(
            f"--seeds 2 {TINY} task.batch_size=4 task.length=16 model.positions.max_length=16 "
            "task.evaluation_batches=1",
        ),
    ),
    # 6e15 FLOP: 30 s of training for eight seeds; compiling and translating take the rest. Its weights stay on the
    # machine, so that training and translation belong to one call.
    item(
        "multi30k",
        "flaxformer run experiments/training/multi30k.py --keep best --output {folder}",
        "python experiments/training/multi30k_bleu.py {folder}",
        minutes=3.5,
        least=2.5,
        needs=MULTI30K,
        quick=(f"--seeds 2 {TINY} {TINY_PAIRS}", "test_2016_flickr 4"),
    ),
    # The question of the catalog, at a size that a CPU does not reach: the most worth of all, but about a hundred
    # programs, each of which compiles for longer than it trains: four processes, which take programs in turn, so that
    # the seconds of a run are not those of a GPU for itself. It continues program by program, so it gets what is left.
    Item(
        "catalog",
        (
            "python experiments/catalog/effects.py --task text --form gpu",
            "python experiments/catalog/effects.py --task spans --form gpu",
            "python experiments/catalog/effects.py --task recall --form gpu",
        ),
        minutes=12,
        least=2,
        folder=Path("runs/catalog"),
        needs=("experiments/catalog/effects.py",),
        processes=4,
        quick=("--form quick --family norms", "--form quick", "--form quick"),
        quick_minutes=0.75,  # it is interrupted, which a call on a GPU will do too
    ),
    # 15 programs, the five of length 64 first, of about 1 min each: 20 runs by 3,000 steps by 32,000 tokens of 8,192
    # logits, which the memory's bandwidth limits. Four processes, since compiling takes as long. It continues program
    # by program.
    item(
        "recall",
        "flaxformer run experiments/studies/recall.py --output {folder}",
        minutes=12,
        least=2.5,
        processes=4,
        quick=(
            "--share 1/150 training.steps=2 training.evaluate_every=1 training.precision=float32 task.keys=64 "
            "task.values=64 model.vocabulary=128 model.d_model=16 task.evaluation_batches=1",
        ),
    ),
    # One round of it was measured on an H200, so that the spread is not known: a second round of 8 processes of 30 s.
    # It does not continue, so it is begun only if it can end.
    item(
        "formulations",
        "flaxformer bench formulations --rounds 1 --output {folder}",
        minutes=5.5,
        least=4.5,
        quick=("--quick --only as-it-is none",),
    ),
    # Measured before, where it missed its goal: worth a repetition after a change of decoding, else not.
    item(
        "decoding",
        "flaxformer bench accelerator --only decoding --minutes 2.5 --output {folder}",
        minutes=3,
        least=2,
        quick=("--quick --minutes 15",),
    ),
    # Values of kernels were checked before, and their speed is known at one length.
    item(
        "kernels",
        "flaxformer bench accelerator --only kernels --minutes 2 --output {folder}",
        minutes=2.5,
        least=1.5,
        quick=("--quick --minutes 15",),
    ),
    # 1.7e9 tokens at 560,000 tokens/s, less a tenth for Muon: an hour. Last, since few calls have an hour, and its
    # checkpoints are not brought back.
    item(
        "track3",
        "python experiments/training/track3_data.py data/fineweb10B data/fineweb10B/prepared",
        "flaxformer train experiments/training/track3.py --output {folder} --samples 0",
        minutes=75,
        least=60,
        needs=("data/fineweb10B/fineweb_val_000000.bin", "data/fineweb10B/fineweb_train_000001.bin"),
        quick=(
            "",
            "training.steps=2 training.evaluate_every=1 training.micro_batches=1 training.precision=float32 "
            "task.batch_size=2 task.length=16 task.evaluation_batches=1 model.layers=1 model.d_model=16 "
            "model.attention.heads=2 model.positions.rotated_width=4",
        ),
    ),
)
"""In the order in which they are run."""
