"""Arguments of the commands for studies: declare, plan, run, status, report, measure, compare, replicate, verify."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flaxformer.cli.arguments.options import (
    LAYOUTS,
    ON_ERROR,
    CodeChangeOption,
    Coordinator,
    FormulationsOption,
    Full,
    Live,
    Output,
    Overrides,
    Process,
    Processes,
    Profile,
    SeedsOption,
    Track,
    TrustCode,
    flag,
    option,
    positional,
)


@dataclasses.dataclass(frozen=True)
class StudyArguments:
    """Arguments that plan and run share."""

    file: Annotated[Path, tyro.conf.Positional, positional("FILE", "a Python file that defines `study`")]
    overrides: Overrides = ()
    seeds: SeedsOption = None
    output: Annotated[Path | None, option("DIR", "runs/NAME", "folder of the results, or s3://… or gs://…")] = None
    devices: Annotated[int | None, option("N", "all; a CPU has one per core", "number of devices to use")] = None
    group_size: Annotated[
        int | None, option("N", "1 on a CPU, else as many as fit", "runs to train at a time on each device")
    ] = None
    exact: Annotated[bool, flag("train one run at a time on one device: bitwise equal to training each alone")] = False
    mesh: Annotated[
        str | None, option("AXIS=N,…", "one device", "devices for each run, such as data=2 or fsdp=2,tensor=2")
    ] = None
    chunk_steps: Annotated[int, option("N", "50", "steps between two updates of the progress")] = 50
    save_minutes: Annotated[float, option("N", "5; 0 for never", "minutes between two saves of unfinished runs")] = 5.0
    formulations: FormulationsOption = "auto"
    layout: Annotated[LAYOUTS, option("KIND", "auto: by depth", "layers: auto, unrolled or scanned")] = "auto"
    diagnostics: Annotated[bool, flag("also record norms, attention entropy and logits")] = False
    keep: Annotated[
        Literal["final", "best", "all"] | None,
        option("KIND", "none", "weights of each run to keep: final, best, or all evaluated steps"),
    ] = None


@dataclasses.dataclass(frozen=True)
class Declare:
    """Write and print the declaration of a study with its digest, without training.

    Publish them before you run: the report of the study shows the same digest.

    Examples:
      flaxformer declare study.py
      flaxformer declare study.py --seeds 8 --output runs/study --json
    """

    file: Annotated[Path, tyro.conf.Positional, positional("FILE", "a Python file that defines `study`")]
    overrides: Overrides = ()
    seeds: SeedsOption = None
    output: Annotated[Path | None, option("DIR", "runs/NAME", "folder of the results, or s3://… or gs://…")] = None
    on_code_change: CodeChangeOption = "refuse"
    json: Annotated[bool, flag("print JSON")] = False


@dataclasses.dataclass(frozen=True)
class Plan(StudyArguments):
    """Show the runs of a study, and the time and memory that they need.

    --target compiles for other accelerators and shows whether the programs fit.

    Examples:
      flaxformer plan study.py
      flaxformer plan study.py model.layers=4 --seeds 3
      flaxformer plan run.py --target h200x8 --mesh fsdp=8
    """

    weights: Annotated[bool, flag("also list the weights of the baseline's model")] = False
    json: Annotated[bool, flag("print the plan as JSON, and nothing else")] = False
    remat: Annotated[bool, flag("also list the memory of the baseline's step under every training.remat")] = False
    target: Annotated[
        str | None, option("NAME", "this machine", "accelerators: h200x8, h100, a100-80, b200, v5e-2x4, v5p-4x4x4, …")
    ] = None
    quick: Annotated[
        bool, flag("with --target: compile each program once, without the largest batch and group size")
    ] = False


@dataclasses.dataclass(frozen=True)
class LauncherArguments:
    """Arguments that choose where the runs are trained."""

    launcher: Annotated[
        Literal["local", "slurm", "ray"] | None,
        option("KIND", "this process", "train in worker processes (local), SLURM jobs (slurm) or Ray tasks (ray)"),
    ] = None
    workers: Annotated[
        int | None, option("N", "one per device, or one job per program", "number of worker processes or jobs")
    ] = None
    slurm: Annotated[
        tuple[str, ...],
        option("KEY=VALUE …", "time=60", "time, nodes, gpus and cpus per node, parallel, or any option of sbatch"),
    ] = ()
    ray: Annotated[tuple[str, ...], option("KEY=VALUE …", "cpus=1", "cpus and gpus of a task")] = ()
    share: Annotated[
        str | None, option("K/N", "all runs", "train the K-th of N shares of the runs, without a report")
    ] = None


@dataclasses.dataclass(frozen=True)
class RunStudy(LauncherArguments, StudyArguments):
    """Train the missing runs of a study, then write its report and print the answer.

    The same command resumes a study; several of them share the work in one folder.

    Examples:
      flaxformer run study.py
      flaxformer run study.py model.layers=4 --seeds 3 --output runs/deeper
      flaxformer run study.py --track tensorboard
      flaxformer run study.py --launcher slurm --slurm time=120 gpus=1
    """

    retry_failed: Annotated[bool, flag("also train the failed runs again")] = False
    full: Full = False
    json: Annotated[bool, flag("print the answer as JSON at the end, and nothing else")] = False
    on_error: Annotated[ON_ERROR, option("continue|stop", "continue", "what to do when a run fails")] = "continue"
    on_code_change: CodeChangeOption = "refuse"
    track: Track = ()
    live: Live = False
    profile: Profile = None
    coordinator: Coordinator = None
    processes: Processes = None
    process: Process = None


@dataclasses.dataclass(frozen=True)
class Status:
    """Show the progress of a study, and the processes that train it.

    It reads the output folder alone, so it works on any machine that sees it.

    Examples:
      flaxformer status runs/study
      flaxformer status runs/study --watch
      flaxformer status runs/study --json
      flaxformer status runs/study --serve 8000
    """

    directory: Output
    watch: Annotated[bool, flag("show the progress and the current estimates until all runs are done")] = False
    json: Annotated[bool, flag("print JSON, with the names of the runs that have no result")] = False
    serve: Annotated[
        int | None,
        option(
            "[PORT]",
            "none; a free port if only --serve is given",
            "serve a page that refreshes itself, to this machine alone",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class Report:
    """Write the report of an output folder again, and print the answer.

    For a folder of such folders, it writes each report and an index page.

    Examples:
      flaxformer report runs/study
      flaxformer report runs/study --full
      flaxformer report runs/study --json
      flaxformer report runs
    """

    directory: Output
    full: Full = False
    json: Annotated[bool, flag("print the answer of a study or a ledger as JSON, and nothing else")] = False


@dataclasses.dataclass(frozen=True)
class MeasureTrials:
    """Measure the kept weights of a study, without training again.

    FILE defines measure(params, run[, data]), which returns numbers by name.

    Examples:
      flaxformer measure runs/study sharpness.py
      flaxformer measure runs/study sharpness.py --function trace --step 200
    """

    directory: Output
    file: Annotated[Path, tyro.conf.Positional, positional("FILE", "a Python file that defines the function")]
    function: Annotated[str, option("F", "measure", "name of the function")] = "measure"
    step: Annotated[int | None, option("N", "the newest of each run", "step of the kept weights")] = None
    trust_code: TrustCode = False


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compare two studies, or two training jobs, side by side.

    Arms of both studies are compared seed by seed: B − A with a 95 % interval.

    Of jobs: configs, scores, cost, loss at equal steps, tokens and FLOPs.

    Examples:
      flaxformer compare runs/study runs/deeper
      flaxformer compare runs/book runs/book_wide
      flaxformer compare runs/study runs/deeper --table runs/both.parquet
      flaxformer compare runs/study runs/deeper --json
    """

    a: Annotated[Path, tyro.conf.Positional, positional("DIR_A", "the output folder of a study or a job")]
    b: Annotated[Path, tyro.conf.Positional, positional("DIR_B", "the output folder of another one")]
    table: Annotated[
        Path | None, option("FILE", "none", "also write the rows of both, paired by axes and seed, as Parquet")
    ] = None
    json: Annotated[bool, flag("print both studies and their differences as JSON, and nothing else")] = False


@dataclasses.dataclass(frozen=True)
class Replicate:
    """Run a study again at fresh seeds, and show both results side by side.

    It executes the folder's copy of the study's file with --trust-code, or --file.

    Seeds that the study used are refused.

    For the folder of 'flaxformer claims', it replicates all claims in it.

    Examples:
      flaxformer replicate runs/study --trust-code
      flaxformer replicate runs/study --file study.py --seeds 5000:5016
      flaxformer replicate runs/claims
    """

    directory: Output
    overrides: Annotated[
        tuple[str, ...],
        option("PATH=VALUE …", "those of the first run", "change fields; '--set' may be omitted", name="set"),
    ] = ()
    seeds: Annotated[
        str | None,
        option("A:B|LIST", "the first seeds + 1000", "use the seeds A to B − 1, or those of a list: 103,105"),
    ] = None
    output: Annotated[Path | None, option("DIR", "DIR-replication", "folder of the results")] = None
    file: Annotated[Path | None, option("FILE", "the copy in the folder", "file of the study")] = None
    trust_code: TrustCode = False
    folder: Annotated[Path, option("DIR", "experiments/claims, of the repository", "folder of the claims' files")] = (
        Path("experiments/claims")
    )
    devices: Annotated[int | None, option("N", "all; a CPU has one per core", "number of devices to use")] = None


@dataclasses.dataclass(frozen=True)
class Verify:
    """Train some finished trials again, and compare their results bit by bit.

    It executes the folder's copy of the study's file with --trust-code, or --file.

    Rows that were changed after training are found; the report tells the result.

    Examples:
      flaxformer verify runs/study --trust-code
      flaxformer verify runs/study --trials 10 --file study.py
    """

    directory: Output
    overrides: Annotated[
        tuple[str, ...],
        option("PATH=VALUE …", "those of the first run", "change fields; '--set' may be omitted", name="set"),
    ] = ()
    trials: Annotated[int, option("N", "3", "number of trials to train again, chosen at random")] = 3
    seed: Annotated[int | None, option("N", "drawn", "seed of the choice")] = None
    file: Annotated[Path | None, option("FILE", "the copy in the folder", "file of the study")] = None
    trust_code: TrustCode = False
    mesh: Annotated[str | None, option("AXIS=N,…", "that of the first run", "devices for each run")] = None
    devices: Annotated[int | None, option("N", "all; a CPU has one per core", "number of devices to use")] = None
    json: Annotated[bool, flag("print JSON")] = False
