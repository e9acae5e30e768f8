"""Arguments of the commands around improvements: noise, improve."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from flaxformer.cli.arguments.options import Overrides, SeedsOption, TrustCode, flag, option, positional


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

    Without a change, an attempt that was interrupted goes on.

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
    json: Annotated[bool, flag("print the ledger as JSON at the end, and nothing else")] = False
