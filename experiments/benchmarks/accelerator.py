"""One accelerator in ten minutes: kernels, peaks, training, a study, decoding and compile times, beside peers.

Command: flaxformer bench accelerator [--minutes 10]; on a CPU, to see whether it runs, with --quick
Sections, in the order in which they are measured; each is a benchmark of its own too:
    training  tokens/s in bfloat16 of GPT-2 124M and of sizes S and XS
    study     64 runs of size XS by vmap, in a group of 64 or of the size that memory gives, against a process per run
    decoding  tokens/s of size S in bfloat16, with the prompt and after it
    kernels   values and gradients of every attention kernel against the equation, and their speed
    matmul    products of matrices by XLA and by PyTorch, as a share of the peak of the data sheet
    compile   seconds to the first step of 12 layers of size S
Peers are left out where they are not installed: pip install torch transformers.
Output: a JSON file and a page in Markdown in runs/bench/accelerator, written again after each measurement, so that an
    interruption loses nothing. Shares are of the data sheet (`flaxformer.targets.devices`).
On a machine without a package index: experiments/on_gpu.sh with WHEELS flaxformer bench accelerator.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import compile as compile_times
import decoding
import kernels
import study
import training

from flaxformer.bench import Benchmark, BenchmarkGoal, Section, Suite, Way
from flaxformer.bench.declare import WorkPoint

QUICK_TRAINING = {"size": ("tiny",), "precision": ("float32",), "seconds": (0.05,)}
QUICK_DECODING = {"size": ("tiny",), "precision": ("float32",), "prompt": (8,), "steps": (8,), "seconds": (0.1,)}


def is_gpt2(point: WorkPoint) -> bool:
    """True for a large model, where compiling costs a peer much of the time."""
    return point["size"] in ("gpt2", "tiny")


def is_small(point: WorkPoint) -> bool:
    """True for a model whose kernels are short, so that their launches count."""
    return point["size"] != "gpt2"


def is_not_the_smallest(point: WorkPoint) -> bool:
    """True for the sizes at which Flax NNX is measured."""
    return point["size"] != "XS"


SOME_SIZES = {
    "torch-compiled": is_gpt2,
    "torch-graphs": is_small,
    "hugging-face": is_gpt2,
    "nnx": is_not_the_smallest,
}
"""Ways of training that are measured at some sizes only: of PyTorch's, one at each size."""


def of(benchmark: Benchmark, ways: Sequence[str], **changes: Any) -> Benchmark:
    """Return a benchmark with these ways alone, in one round."""
    chosen = [benchmark.way(name) for name in ways]
    return dataclasses.replace(benchmark, ways=chosen, rounds=1, along="", **changes)


checked = of(
    kernels.benchmark,
    ["cudnn", "splash", "tokamax", "chunked", "xla"],
    options={"length": (2048,), "batch": (4,), "checked": (384,), "seconds": (0.5,)},
)
matmul = of(
    training.benchmark,
    ["matmul-xla", "matmul-torch"],
    question="How fast is the product of two matrices?",
    options={"size": ("gpt2",), "precision": ("bfloat16",), "seconds": (2.0,)},
    quick={"size": ("tiny",), "precision": ("float32",), "seconds": (0.05,)},
    compared="flops_per_second",
    reference="matmul-xla",
    limit=None,
)
trained = of(
    training.benchmark,
    ["flaxformer", "torch-compiled", "torch-graphs", "hugging-face", "nnx"],
    options={"size": ("gpt2", "S", "XS"), "precision": ("bfloat16",), "accelerator": (1,), "seconds": (2.0,)},
    quick={**QUICK_TRAINING},
    reference="flaxformer",
    limit=None,
)
trained = dataclasses.replace(
    trained,
    ways=[dataclasses.replace(way, takes_part=SOME_SIZES.get(way.name, way.takes_part)) for way in trained.ways],
)
studied = dataclasses.replace(
    study.benchmark,
    ways=[
        Way("study-64", study.engine(64), role="ours"),
        study.benchmark.way("processes"),
        study.benchmark.way("processes-cached"),
        Way("study-auto", study.engine(None), role="ours"),
    ],
    options={"file": ("",), "width": (64,), "trials": (8,), "seeds": (8,), "steps": (300,), "every": (32,)},
    quick={"width": (16,), "trials": (2,), "seeds": (1,), "steps": (2,), "every": (2,)},
    reference="processes",
    along="",
    rounds=1,
)
decoded = of(
    decoding.benchmark,
    ["flaxformer", "hugging-face-static", "nnx", "nnx-read-whole", "hugging-face"],
    options={
        "size": ("S",),
        "batch": (64, 1),
        "precision": ("bfloat16",),
        "accelerator": (1,),
        "prompt": (64,),
        "steps": (128,),
        "seconds": (2.0,),
    },
    quick={**QUICK_DECODING, "batch": (2,)},
    reference="flaxformer",
    limit=None,
)
compiled = of(
    compile_times.benchmark,
    ["unrolled", "scanned", "unrolled-cached", "torch", "nnx"],
    options={"depth": (12,), "size": ("S",)},
)
H200 = "H200"
DECODED = {"size": "S", "precision": "bfloat16", "prompt": 64, "steps": 128}
"""Options of the goals for decoding: a goal names all that its number depends on, so that no other point meets it."""
benchmark = Suite(
    question="How fast is this package on this accelerator, and beside its peers?",
    sections={
        "training": Section(trained, share=2.6),
        "study": Section(studied, share=1.1),
        "decoding": Section(decoded, share=1.6),
        "kernels": Section(checked, share=0.8),
        "matmul": Section(matmul, share=0.3),
        "compile": Section(compiled, share=0.3),
    },
    goals=[
        BenchmarkGoal(
            "GPT-2 124M on one H200: at least 462,000 tokens/s",
            *("training", "flaxformer", "tokens_per_second", 462_000.0),
            point={"size": "gpt2", "precision": "bfloat16"},
            device=H200,
        ),
        BenchmarkGoal(
            "GPT-2 124M on one H200: 555,000 tokens/s",
            *("training", "flaxformer", "tokens_per_second", 555_000.0),
            point={"size": "gpt2", "precision": "bfloat16"},
            device=H200,
        ),
        BenchmarkGoal(
            "64 runs of size XS on one H200: 20 × as fast as a process each",
            *("study", "study-64", "seconds", 20.0),
            point={"width": 64, "trials": 8, "seeds": 8, "steps": 300},
            than="processes",
            device=H200,
        ),
        BenchmarkGoal(
            "decoding S, batch 64, on one H200: 3 × the fastest peer",
            *("decoding", "flaxformer", "tokens_per_second", 3.0),
            point={**DECODED, "batch": 64},
            than="peer",
            device=H200,
        ),
        BenchmarkGoal(
            "decoding S, batch 1, on one H200: 3 × the fastest peer",
            *("decoding", "flaxformer", "tokens_per_second", 3.0),
            point={**DECODED, "batch": 1},
            than="peer",
            device=H200,
        ),
    ],
)
