"""Parts that all commands share: exit codes, choices, and the declaration of an option."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130
"""Exit codes other than 0; see `flaxformer --help`."""
LAYOUTS = Literal["auto", "unrolled", "scanned"]
"""The choices of `model.layout.Layout`, without importing JAX."""
FORMULATIONS = Literal["auto", "reference"]
"""The choices of `nn.formulations.FormulationSetting`, without importing JAX."""
ON_CODE_CHANGE = Literal["refuse", "keep", "retrain"]
"""The choices of `user_code.changes.OnCodeChange`, without importing JAX."""
LAW_LOSSES = Literal["huber", "log_squares", "squares"]
"""The choices of `study.law_losses.LawLoss`, without importing JAX."""
ON_ERROR = Literal["continue", "stop"]
"""The choices of `runner.execution.OnError`, without importing JAX."""


def positional(metavar: str, words: str, hint: str = "(required)") -> object:
    """Placeholder and meaning of a positional argument, as --help prints them."""
    return tyro.conf.arg(metavar=metavar, help=words, help_behavior_hint=hint)


def option(metavar: str, default: str, words: str, name: str | None = None) -> object:
    """Placeholder, default and meaning of an option, as --help prints them."""
    return tyro.conf.arg(name=name, metavar=metavar, help=words, help_behavior_hint=f"(default: {default})")


def flag(words: str) -> object:
    """Meaning of an option without a value; it is off by default."""
    return tyro.conf.arg(help=words, help_behavior_hint="")


Overrides = Annotated[
    tuple[str, ...],
    option("PATH=VALUE …", "none", "change fields, such as model.layers=2; '--set' may be omitted", name="set"),
]
SeedsOption = Annotated[
    str | None, option("N|A:B|LIST", "the study's", "use the seeds 0 to N − 1, A to B − 1, or those of a list: 3,5,8")
]
Output = Annotated[Path, tyro.conf.Positional, positional("DIR", "the output folder of 'run'")]
Track = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    option("NAME", "none", "also log to tensorboard, wandb, trackio, or the Tracker of this name in FILE; repeatable"),
]
Profile = Annotated[
    str | None,
    option("STEPS", "none", "write a trace of this number of steps, or of FIRST:COUNT, and print costs by part"),
]
Live = Annotated[bool, flag("write DIR/live.html meanwhile, a page that refreshes itself in a browser")]
Full = Annotated[bool, flag("also print effects, costs, tables and all limits, which the page has")]
TrustCode = Annotated[bool, flag("execute the copy of your code in DIR, code/, where it is needed")]
CodeChangeOption = Annotated[
    ON_CODE_CHANGE,
    option(
        "refuse|keep|retrain",
        "refuse",
        "what to do if your code has changed since the results were computed: stop with an error, keep the results, "
        "or train again",
    ),
]
FormulationsOption = Annotated[
    FORMULATIONS,
    option("KIND", "auto: the fastest for the platform", "compute by auto, or by reference: the equations alone"),
]
Coordinator = Annotated[
    str | None,
    option(
        "HOST:PORT",
        "srun's, else none",
        "address of the first of several processes that train each run together; 'auto' asks the cluster",
    ),
]
Processes = Annotated[int | None, option("N", "the cluster's", "number of these processes")]
Process = Annotated[int | None, option("N", "the cluster's", "number of this process, from 0")]
