"""Arguments of the commands for a single run: prepare, train, generate."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from flaxformer.cli.arguments.options import (
    LAYOUTS,
    CodeChangeOption,
    Coordinator,
    FormulationsOption,
    Live,
    Overrides,
    Process,
    Processes,
    Profile,
    Track,
    TrustCode,
    flag,
    option,
    positional,
)


@dataclasses.dataclass(frozen=True)
class Prepare:
    """Turn text, or pairs of sentences to translate, into a folder of tokens.

    Examples:
      flaxformer prepare book.txt data/book
      flaxformer prepare texts/ data/texts --tokenizer bpe --vocabulary 8000
      flaxformer prepare train.de data/de-en --target train.en
    """

    source: Annotated[
        str,
        tyro.conf.Positional,
        positional("SOURCE", "a text, .csv, .tsv, .jsonl or .parquet file (several by *), a folder, or hf:OWNER/NAME"),
    ]
    output: Annotated[Path, tyro.conf.Positional, positional("OUTPUT", "the folder to write")]
    target: Annotated[str | None, option("FILE", "none", "its line i is the translation of line i of SOURCE")] = None
    tokenizer: Annotated[
        str, option("KIND", "bytes", "bytes, characters, bpe (trained on SOURCE), or the path of a tokenizer.json")
    ] = "bytes"
    vocabulary: Annotated[int | None, option("N", "none", "number of tokens of bpe")] = None
    validation_tenths: Annotated[int, option("N", "1", "tenths of the data to hold out for validation")] = 1
    end: Annotated[bool, flag("add an end token after each document")] = False
    field: Annotated[str, option("NAME", "text", "field or column that holds the text")] = "text"
    drop: Annotated[str, option("NAMES", "none", "other fields of the rows to leave out, with commas; * for all")] = ""
    pattern: Annotated[str, option("GLOB", "**/*.txt", "files of a folder to read")] = "**/*.txt"
    subset: Annotated[str | None, option("NAME", "none", "subset of an hf: data set")] = None
    split: Annotated[str, option("NAME", "train", "split of an hf: data set")] = "train"


@dataclasses.dataclass(frozen=True)
class Train:
    """Train one run; the same command resumes it, more training.steps extend it.

    Examples:
      flaxformer train run.py
      flaxformer train run.py training.steps=4000
      flaxformer train run.py optimizer.learning_rate=3e-4 --output runs/slower
      flaxformer train run.py --profile 10
      flaxformer train run.py --plan
    """

    file: Annotated[Path, tyro.conf.Positional, positional("FILE", "a Python file that defines `run`")]
    overrides: Overrides = ()
    output: Annotated[Path | None, option("DIR", "runs/FILE", "folder of the run, or s3://… or gs://…")] = None
    save_every: Annotated[int | None, option("N", "as often as it is evaluated", "steps between two checkpoints")] = (
        None
    )
    keep_last: Annotated[int, option("N", "2", "number of newest checkpoints to keep")] = 2
    keep_best: Annotated[int, option("N", "1", "number of best checkpoints to keep")] = 1
    chunk_steps: Annotated[
        int | None, option("N", "about a second's work, at most 50", "steps between two updates of the progress")
    ] = None
    formulations: FormulationsOption = "auto"
    layout: Annotated[LAYOUTS, option("KIND", "auto: by depth", "layers: auto, unrolled or scanned")] = "auto"
    samples: Annotated[
        int, option("N", "64", "tokens to generate at each evaluation, for tasks of text; 0 for none")
    ] = 64
    track: Track = ()
    live: Live = False
    profile: Profile = None
    mesh: Annotated[
        str | None,
        option(
            "AXIS=N,…",
            "one accelerator, or the CPU's cores where that is faster",
            "devices along data, fsdp and tensor, such as data=4,tensor=2",
        ),
    ] = None
    coordinator: Coordinator = None
    processes: Processes = None
    process: Process = None
    on_code_change: CodeChangeOption = "refuse"
    restart: Annotated[bool, flag("start again from the first step; what is there goes to superseded/")] = False
    extend: Annotated[
        bool, flag("with more training.steps, go on also where the learning rates of the steps before would be others")
    ] = False
    plan: Annotated[bool, flag("show parameters, memory and time, and train nothing")] = False
    remat: Annotated[bool, flag("with --plan, also list the memory of a step under every training.remat")] = False


@dataclasses.dataclass(frozen=True)
class Generate:
    """Generate text from a trained run, or translate if it was trained on pairs.

    Of a study that was run with --keep, give the arm, and the seed of its run.

    Examples:
      flaxformer generate runs/book --prompt "Once upon"
      flaxformer generate runs/book --prompt "Once upon" --tokens 50 --top-k 1
      flaxformer generate runs/de-en --prompt "Guten Tag" --beams 4
      flaxformer generate runs/de-en --input test.de > test.en
      flaxformer generate runs/study --arm norm=pre --trial-seed 3
      flaxformer generate runs/book --edit without_head.py
    """

    directory: Annotated[
        Path,
        tyro.conf.Positional,
        positional("DIR", "the output folder of 'train' or of 'run', or a Hugging Face folder"),
    ]
    arm: Annotated[
        str | None, option("AXIS=LEVEL,…", "the only arm", "arm of a study; an axis that leaves one arm may be omitted")
    ] = None
    trial_seed: Annotated[int | None, option("N", "the study's first", "seed of the run of a study")] = None
    prompt: Annotated[str | None, option("TEXT", "a newline", "text to continue or to translate")] = None
    input: Annotated[
        str | None, option("FILE", "none", "translate each line of FILE to a line of the output; - is standard input")
    ] = None
    tokens: Annotated[
        int | None,
        option("N", "200, or as many as fit; for a translation the task's longest", "number of tokens at most"),
    ] = None
    temperature: Annotated[
        float | None,
        option("T", "0.8; for a translation, the most likely token", "divide the logits by T and sample"),
    ] = None
    top_k: Annotated[int | None, option("K", "all", "sample from the K most likely tokens; 1 is greedy")] = None
    top_p: Annotated[float | None, option("P", "all", "sample from the most likely tokens of total probability P")] = (
        None
    )
    beams: Annotated[int | None, option("N", "none", "beam search with N beams instead of sampling")] = None
    edit: Annotated[
        Path | None,
        option("FILE", "none", "intervene in the model: FILE defines edit, functions of activations by path"),
    ] = None
    seed: Annotated[int, option("N", "0", "seed of the samples")] = 0
    step: Annotated[
        int | None, option("N", "the best, else the newest; of a study the newest", "step of the checkpoint")
    ] = None
    trust_code: TrustCode = False
