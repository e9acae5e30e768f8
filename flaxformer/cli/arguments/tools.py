"""Arguments of the commands around studies and runs: catalog, new, check, fit, noise, improve, claims, bench …"""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flaxformer.cli.arguments.options import (
    LAW_LOSSES,
    CodeChangeOption,
    Overrides,
    SeedsOption,
    TrustCode,
    flag,
    option,
    positional,
)


@dataclasses.dataclass(frozen=True)
class Catalog:
    """List the published mechanisms that a config can name, or show one with its code.

    Examples:
      flaxformer catalog
      flaxformer catalog --family attention
      flaxformer catalog scalable_softmax
    """

    name: Annotated[
        str | None,
        tyro.conf.Positional,
        positional("[NAME]", "name of a mechanism's file", "(default: list all)"),
    ] = None
    family: Annotated[str | None, option("FAMILY", "all", "list the mechanisms of a family, such as attention")] = None
    json: Annotated[bool, flag("print a JSON object per mechanism, one per line")] = False
    markdown: Annotated[bool, flag("print the page docs/catalog.md")] = False


@dataclasses.dataclass(frozen=True)
class New:
    """Write a commented file to start from: a study, a run, a component, a ledger, …

    `agent` writes instructions for a program that improves the ledger.

    Examples:
      flaxformer new study my_study
      flaxformer new study my_norms --like experiments/norm_and_scale.py
      flaxformer new run my_model
      flaxformer new component my_attention --kind attention
      flaxformer new ledger my_recipe
    """

    template: Annotated[
        Literal["study", "run", "component", "task", "ledger", "agent"],
        tyro.conf.Positional,
        positional("TEMPLATE", "what it is: study, run, component, task, ledger or agent"),
    ]
    name: Annotated[str, tyro.conf.Positional, positional("NAME", "name of the file, such as my_study")]
    kind: Annotated[
        str | None, option("KIND", "feed_forward", "kind of a component: feed_forward, attention, mixer or norm")
    ] = None
    like: Annotated[Path | None, option("FILE", "a short example", "a study to copy")] = None


@dataclasses.dataclass(frozen=True)
class Check:
    """Check models against the laws that every architecture must obey.

    Examples:
      flaxformer check study.py
      flaxformer check study.py model.norm=post --laws causality gradients
    """

    file: Annotated[Path, tyro.conf.Positional, positional("FILE", "a Python file that defines `study` or `run`")]
    overrides: Overrides = ()
    laws: Annotated[
        tuple[str, ...], option("NAME …", "all", "check only these laws, by the names in the first column")
    ] = ()
    json: Annotated[bool, flag("print a JSON object per model and law, one per line, and nothing else")] = False


@dataclasses.dataclass(frozen=True)
class Fit:
    """Fit a joint scaling law in parameters N and tokens D to the points of a table.

    The table is a CSV, JSONL or Parquet file with a row per trained model.

    The law is L∞ + A·N^(−α) + B·D^(−β), fitted as Hoffmann et al. (2022) do.

    Its intervals are from resampled points.

    Examples:
      flaxformer fit points.csv
      flaxformer fit points.csv --parameters N --flops C --leave-out 5
      flaxformer fit points.parquet --embeddings E --minimise squares
    """

    file: Annotated[Path, tyro.conf.Positional, positional("FILE", "a table: .csv, .jsonl or .parquet")]
    parameters: Annotated[str | None, option("COLUMN", "parameters or N", "column with N")] = None
    tokens: Annotated[str | None, option("COLUMN", "tokens or D", "column with D")] = None
    losses: Annotated[str | None, option("COLUMN", "loss or L", "column with the losses")] = None
    flops: Annotated[str | None, option("COLUMN", "none", "column with C in place of D: D = C / (6·N)")] = None
    embeddings: Annotated[
        str | None, option("COLUMN", "none", "column with the parameters of embeddings, which are subtracted from N")
    ] = None
    minimise: Annotated[
        LAW_LOSSES,
        option(
            "huber|log_squares|squares",
            "huber",
            "Huber's loss of log residuals (Hoffmann et al. 2022), or squares of log or raw residuals",
        ),
    ] = "huber"
    delta: Annotated[float, option("N", "0.001", "δ of Huber's loss; a small one minimises absolute log residuals")] = (
        1e-3
    )
    leave_out: Annotated[int, option("N", "0", "leave out the N points with the highest losses")] = 0
    resamples: Annotated[int, option("N", "1000", "number of fits to resampled points; 0 for no intervals")] = 1000
    seed: Annotated[int, option("N", "0", "seed of the resampling")] = 0
    json: Annotated[bool, flag("print JSON")] = False


@dataclasses.dataclass(frozen=True)
class Claims:
    """Test the claims of the founding texts; finished results are kept.

    Examples:
      flaxformer claims --quick
      flaxformer claims 3 pre_norm
      flaxformer claims --seeds 1000:1008
    """

    names: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        positional("[NAME …]", "numbers or names of claims, such as 3 or pre_norm", "(default: all)"),
    ] = ()
    quick: Annotated[bool, flag("test a weaker form of each claim, in minutes")] = False
    seeds: SeedsOption = None
    folder: Annotated[Path, option("DIR", "experiments/claims, of the repository", "folder of the claims' files")] = (
        Path("experiments/claims")
    )
    output: Annotated[Path | None, option("DIR", "runs/claims[-quick][-seeds]", "folder of the results")] = None
    devices: Annotated[int | None, option("N", "all; a CPU has one per core", "number of devices to use")] = None
    on_code_change: CodeChangeOption = "refuse"


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure speed beside other implementations.

    Without a name, it lists the benchmarks and their options.

    An option of a benchmark is a word such as size=S,M: one value or several.

    Examples:
      flaxformer bench
      flaxformer bench training size=S --quick
      flaxformer bench accelerator --minutes 10
    """

    name: Annotated[
        str | None, tyro.conf.Positional, positional("[NAME]", "name of the benchmark", "(default: list them)")
    ] = None
    overrides: Annotated[
        tuple[str, ...],
        option("OPTION=VALUE[,VALUE] …", "the file's", "options of the benchmark; '--set' may be omitted", name="set"),
    ] = ()
    rounds: Annotated[
        int | None, option("N", "the file's; 1 with --quick", "number of measurements of each implementation")
    ] = None
    only: Annotated[
        tuple[str, ...], option("NAME …", "all", "measure only these implementations, or sections of a suite")
    ] = ()
    minutes: Annotated[float | None, option("N", "the file's", "time of a suite, which its sections share")] = None
    reference: Annotated[str | None, option("NAME", "the file's", "implementation that the others are divided by")] = (
        None
    )
    compared: Annotated[str | None, option("NUMBER", "the file's", "number that is compared")] = None
    quick: Annotated[bool, flag("one round of little work, to see whether it runs")] = False
    folder: Annotated[
        Path, option("DIR", "experiments/benchmarks, of the repository", "folder of the benchmarks' files")
    ] = Path("experiments/benchmarks")
    output: Annotated[Path | None, option("DIR", "runs/bench/NAME", "folder of the JSON files and figures")] = None


@dataclasses.dataclass(frozen=True)
class Completion:
    """Print a script that completes commands and options when you press Tab.

    Examples:
      echo 'source <(flaxformer completion bash)' >> ~/.bashrc
      flaxformer completion zsh > ~/.zfunc/_flaxformer  # a folder of your fpath
      flaxformer completion fish > ~/.config/fish/completions/flaxformer.fish
    """

    shell: Annotated[
        Literal["bash", "zsh", "fish"], tyro.conf.Positional, positional("bash|zsh|fish", "the shell that you use")
    ]


@dataclasses.dataclass(frozen=True)
class MeasureNoise:
    """Measure the noise floor of a run: which effects so many seeds can show.

    It varies every source of randomness alone, and makes a small change.

    `plan` then says which effects a study in the folder beside it finds.

    Examples:
      flaxformer noise study.py
      flaxformer noise run.py --seeds 16 --change model.dropout=0.12
    """

    file: Annotated[
        Path, tyro.conf.Positional, positional("FILE", "a Python file that defines `study`, `run` or `ledger`")
    ]
    overrides: Overrides = ()
    seeds: SeedsOption = None
    change: Annotated[
        str | None, option("PATH=VALUE", "a learning rate 10 % higher", "the small change that is paired")
    ] = None
    output: Annotated[Path | None, option("DIR", "runs/NAME-noise", "folder of the results")] = None
    devices: Annotated[int | None, option("N", "all; a CPU has one per core", "number of devices to use")] = None
    json: Annotated[bool, flag("print JSON")] = False


@dataclasses.dataclass(frozen=True)
class Improve:
    """Try a change of the best recipe so far, and keep it if the evidence suffices.

    Both are trained at fresh seeds, pair after pair, until it is decided.

    The same command, also without its changes, continues an interrupted attempt.

    `flaxformer report DIR` writes the page of all attempts.

    Examples:
      flaxformer improve ledger.py model.norm=post --reason "as published"
      flaxformer improve ledger.py --candidate gated.py --reason "gates help"
      flaxformer improve ledger.py model.layers=3 --tune 0.001 0.003 --reason deep
      flaxformer improve ledger.py --confirm
    """

    file: Annotated[Path, tyro.conf.Positional, positional("FILE", "a Python file that defines `ledger`")]
    overrides: Overrides = ()
    candidate: Annotated[
        Path | None, option("FILE", "the best recipe", "a file that defines the candidate as `run`, before any change")
    ] = None
    reason: Annotated[str | None, option("TEXT", "none", "why the change may help, in one sentence")] = None
    tune: Annotated[
        tuple[float, ...] | None,
        option("RATE …", "none", "learning rates to try for the candidate first, at the tuning seeds"),
    ] = None
    budget: Annotated[
        str | None,
        option("COST", "the ledger's", "what a run of the start may cost: 5m, '10M tokens', '2e15 FLOPs'"),
    ] = None
    confirm: Annotated[
        bool, flag("compare the best recipe with the start on the test data, once, which ends the ledger")
    ] = False
    withdraw: Annotated[bool, flag("end the attempt under way; it counts as one without effect")] = False
    output: Annotated[Path | None, option("DIR", "runs/NAME", "folder of the ledger")] = None
    trust_code: TrustCode = False
    devices: Annotated[int | None, option("N", "all; a CPU has one per core", "number of devices to use")] = None
    share: Annotated[
        str | None, option("K/N", "all runs", "train the K-th of N shares of the runs first, of N processes")
    ] = None
    json: Annotated[bool, flag("print the ledger as JSON at the end, and nothing else")] = False
