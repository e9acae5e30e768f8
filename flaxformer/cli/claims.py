"""The command `flaxformer claims`."""

from pathlib import Path

from rich.console import Console

from flaxformer.claims.case import find_cases
from flaxformer.claims.run import run_case
from flaxformer.claims.table import show, write
from flaxformer.cli.arguments import Claims
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.show import show_paths
from flaxformer.runner.execution import Execution
from flaxformer.study.seeds import parse_seeds


def folder_name(arguments: Claims) -> str:
    """The default folder of the results, such as "claims-quick-seeds-1000to1008"."""
    quick = "-quick" if arguments.quick else ""
    seeds = "" if arguments.seeds is None else f"-seeds-{''.join(arguments.seeds.split())}"
    return f"claims{quick}{seeds}".replace(":", "to").replace(",", "-")


def main(arguments: Claims, console: Console) -> int:
    """Test each claim, and write the page of all."""
    fixed_seeds = None if arguments.seeds is None else parse_seeds(arguments.seeds)
    cases = find_cases(arguments.folder, arguments.names)
    seeds = None if fixed_seeds is None else lambda _: fixed_seeds
    root = arguments.output or Path("runs") / folder_name(arguments)
    execution = Execution(devices=arguments.devices, on_code_change=arguments.on_code_change)
    outcomes = [run_case(case, root / case.name, execution, arguments.quick, console, seeds) for case in cases]
    show(console, outcomes, arguments.quick)
    console.print()
    show_paths(console, {"Page": write(root, outcomes, arguments.quick)})
    return FAILED if any(outcome.failure for outcome in outcomes) else 0
