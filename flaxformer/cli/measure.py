"""The command `flaxformer measure DIR FILE`."""

from rich.console import Console
from rich.text import Text

from flaxformer.cli.arguments import MeasureTrials
from flaxformer.cli.show import show_paths
from flaxformer.report import measured
from flaxformer.report.files import write
from flaxformer.report.numbers import number
from flaxformer.report.width import fit_width, shorten_cells
from flaxformer.runner.trial_measurements import WithoutWeights, load_function, measure_trials
from flaxformer.store.places import REPORT
from flaxformer.store.store import Store
from flaxformer.system.wording import count_of


def main(arguments: MeasureTrials, console: Console) -> int:
    """Measure the kept weights of every run that lacks it, then write the report and show the new columns."""
    store = Store(arguments.directory)
    trials = len(store.declaration.trials)
    function = load_function(arguments.file, arguments.function)
    count = 0
    for event in measure_trials(store, function, arguments.file, arguments.step, arguments.trust_code):
        if isinstance(event, WithoutWeights):
            lacking = f"{count_of(len(event.trials), 'run')} without kept weights: {', '.join(event.trials[:4])}"
            console.print(Text(f"{lacking}{' …' if len(event.trials) > 4 else ''}", style="yellow"))
            continue
        count += 1
        values = "  ".join(f"{name} {number(value)}" for name, value in event.values.items())
        console.print(Text(f"{event.trial}, step {event.at}: {values}"), soft_wrap=True)
    console.print(f"{count_of(count, 'run')} measured; all others of {trials} have it, or no weights.")
    analysis = write(store)
    console.print()
    console.print(fit_width(shorten_cells(measured.table(analysis)), console.width))
    console.print(Text(measured.remark(analysis), style="dim"))
    show_paths(console, {"Report": store.root / REPORT, "Table": store.root / "results.parquet"})
    return 0
