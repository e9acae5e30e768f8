"""The command `flaxformer noise FILE`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from flaxformer.analysis import noise
from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.variance_study import noise_study, small_change
from flaxformer.cli.arguments import MeasureNoise
from flaxformer.cli.arguments.options import FAILED
from flaxformer.cli.show import show_paths
from flaxformer.cli.terminal import print_json
from flaxformer.core.overrides import override
from flaxformer.jobs.progress import follow
from flaxformer.jobs.run_study import begin
from flaxformer.ledger.declare import Ledger
from flaxformer.report.files import write
from flaxformer.report.numbers import number
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.runner.execution import Execution
from flaxformer.runner.launch import plan_of, run_plan
from flaxformer.store.places import REPORT
from flaxformer.study.declare import Study
from flaxformer.study.load import load_module
from flaxformer.study.seeds import parse_seeds
from flaxformer.system.errors import UserError, quote
from flaxformer.system.python_files import find_experiment
from flaxformer.system.typed_data import plain
from flaxformer.system.wording import duration
from flaxformer.training.run import Run

DEFAULT_SEEDS = 8
MEASURED = ("metric", "measure", "metric_unit", "goal")
"""Fields of a study or a ledger by which runs are compared."""


def main(arguments: MeasureNoise, console: Console) -> int:
    """Train the runs that are missing, keep the noise floor, and show it."""
    run, name, measured = _subject(arguments.file)
    beside, run = Path("runs") / name, override(run, arguments.overrides)
    change = small_change(run, arguments.change)
    seeds: int | Sequence[int] = DEFAULT_SEEDS if arguments.seeds is None else parse_seeds(arguments.seeds)
    study = noise_study(run, change, seeds, f"{name}-noise", measured).in_file(find_experiment(arguments.file))
    execution = Execution(output=arguments.output or noise.folder_of(beside), devices=arguments.devices)
    plan = plan_of(study, execution)
    shown = Console(quiet=True) if arguments.json else console
    store, lines, totals = begin(plan, execution)
    for line in lines:
        shown.print(line, soft_wrap=True)
    failed = follow(run_plan(plan, execution), shown, totals)
    analysis = write(store)
    floor = noise.noise_of(analysis, change)
    noise.write(store.root, floor)
    if arguments.json:
        effects = {str(n): effect for n, effect in noise.table(floor)}
        sources = {variance.labels["varied"]: variance.sd for variance in noise.sources(analysis)}
        print_json(plain(floor) | {"sd_by_source": sources, "finds": effects})
    else:
        for line in describe(floor, analysis):
            console.print(line)
        console.print(fit_width(effects_table(floor), console.width))
        show_paths(console, {"Report": store.root / REPORT})
    return FAILED if failed else 0


def _subject(file: Path) -> tuple[Run, str, Mapping[str, object]]:
    """Return the run of a file, the name of its study or ledger, and what that one measures, as fields of a study.

    Raises:
      UserError: the file defines none of `study`, `ledger` and `run`.
    """
    module = load_module(file, "defines `study`, `run` or `ledger`")
    match next((value for name in ("study", "ledger", "run") if (value := getattr(module, name, None))), None):
        case Study() as study:
            return study.baseline, study.name, {field: getattr(study, field) for field in MEASURED}
        case Ledger() as ledger:
            return ledger.start, ledger.name, {field: getattr(ledger, field) for field in MEASURED}
        case Run() as run:
            return run, file.stem, {}
        case other:
            raise UserError(
                f"'{file}' defines no `study`, `ledger` or `run`; expected one of them, found {quote(other)}"
            )


def describe(floor: noise.Noise, analysis: Analysis) -> Iterator[str]:
    """Yield the spread by source, that of a small change, and that of the evaluation examples."""
    yield f"Spread of {floor.metric} over {floor.n} seeds, as standard deviations in {floor.unit or 'its unit'}:"
    for variance in noise.sources(analysis):
        low, high = number(variance.low), number(variance.high)
        yield f"  {variance.labels['varied']}: {number(variance.sd)} [{low}, {high}]"
    if floor.evaluation_se is not None:
        yield f"  evaluation examples: {number(floor.evaluation_se)} (the same examples in every run)"
    low, high = map(number, noise.interval(floor))
    yield f"  difference by a small change ({floor.change}), paired by seed: {number(floor.paired_sd)} [{low}, {high}]"
    yield f"A run takes {duration(floor.seconds)}."


def effects_table(floor: noise.Noise) -> Table:
    """The effect that so many paired seeds find, of one claim."""
    rows = [[str(n), number(effect), duration(2 * n * floor.seconds)] for n, effect in noise.table(floor)]
    unit = f" ({floor.unit})" if floor.unit else ""
    return Table("", ["seeds", f"effect found with probability {noise.POWER}{unit}", "time of two arms"], rows, 0)
