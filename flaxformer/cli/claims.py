"""The command `flaxformer claims`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from flaxformer.claims.case import find_cases
from flaxformer.claims.run import run_case
from flaxformer.claims.table import show, write
from flaxformer.cli.options import FAILED, option
from flaxformer.runner.execute import Execution
from flaxformer.user_code.changes import OnCodeChange


@dataclasses.dataclass(frozen=True)
class Claims:
    """Measure the claims of the founding texts, each with its verdict; what is done already is not done again."""

    names: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[NAME …]", help="numbers or names of claims, as in 3 or pre_norm; all by default"),
    ] = ()
    quick: Annotated[bool, tyro.conf.arg(help="a weaker form of each, for a first look in minutes")] = False
    folder: Annotated[Path, option("DIR", "experiments/claims", "where the files of the claims are")] = Path(
        "experiments/claims"
    )
    output: Annotated[Path | None, option("DIR", "runs/claims", "folder of results")] = None
    devices: Annotated[int | None, option("N", "all; a CPU is one a core", "devices to use")] = None
    on_code_change: Annotated[
        OnCodeChange,
        option("refuse|keep|retrain", "refuse", "what to do with results whose user code has changed since"),
    ] = "refuse"

    def __call__(self, console: Console) -> int:
        cases = find_cases(self.folder, self.names)
        root = self.output or Path("runs") / ("claims-quick" if self.quick else "claims")
        outcomes = []
        for case in cases:
            execution = Execution(devices=self.devices)
            outcomes.append(
                run_case(case, root / case.name, execution, self.quick, console, on_code_change=self.on_code_change)
            )
        show(console, outcomes, self.quick)
        console.print(f"\nPage: {write(root, outcomes, self.quick)}", highlight=False, soft_wrap=True)
        return FAILED if any(outcome.failure for outcome in outcomes) else 0
