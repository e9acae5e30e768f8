"""The command `flaxformer catalog`: published mechanisms, listed or shown. Nothing here imports JAX."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from flaxformer.catalog.index import FAMILIES, Mechanism, mechanisms
from flaxformer.cli.arguments import Catalog
from flaxformer.cli.terminal import print_json
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.wording import count_of

PAGE = """# Catalog

Published mechanisms, one file each in [`flaxformer/catalog/`](../flaxformer/catalog), written with the interface that
[your own component](components.md) has. `flaxformer catalog` lists them, and `flaxformer catalog NAME` shows one.
`model.attention=ScalableSoftmax` on a command line, or the class as a level of an `Axis`, switches one on: it keeps the
fields that both components have. In Python, `variants(NAME)` has the published settings:

```python
from flaxformer import Points
from flaxformer.catalog import variants

axis = Points("attention", {"softmax": {}} | variants("scalable_softmax"))
```

Every mechanism passes `flaxformer check`; the last column has the independent implementation to which its outputs and
gradients are equal. Its file has the equation, what the source claims, and the cost. "Gain here" is what its arms do to
the test loss of a small model at equal compute (experts: equal steps), in nats, from the worst to the best. Intervals,
verdicts, and why they may differ from what was published are in [effects](effects.md). This page is written by
`flaxformer catalog --markdown`.
"""
ABSENT = {
    "Distillation from a kept run": "its arms name the folder of a teacher, so that it is an example with a study: a "
    "task and a loss term in [`examples/distillation.py`](../examples/distillation.py)",
    "Shampoo": "SOAP is Adam in the eigenbasis of its preconditioner; Shampoo by itself has not been written",
    "Sophia": "its estimate of the Hessian's diagonal is a second gradient, of sampled targets; a step takes one",
}
"""Mechanisms that recent comparisons include and that the catalog does not have, with the reason."""
COLUMNS = ("mechanism", "what it does", "source", "gain here", "verified against")


def main(arguments: Catalog, console: Console) -> int:
    """List the mechanisms, or show one."""
    if arguments.name is not None:
        show(find(arguments.name), console)
        return 0
    chosen = [*mechanisms().values()]
    if arguments.family is not None:
        if arguments.family not in FAMILIES:
            raise UserError(f"family is '{arguments.family}'{did_you_mean(arguments.family, FAMILIES)}")
        chosen = [mechanism for mechanism in chosen if mechanism.family == arguments.family]
    if arguments.json:
        for mechanism in chosen:
            effects = [dataclasses.asdict(effect) for effect in mechanism.effects]
            print_json(dataclasses.asdict(mechanism) | {"year": mechanism.year, "effects": effects}, in_line=True)
    elif arguments.markdown:
        print("\n".join(page(chosen)))
    else:
        show_list(chosen, console)
    return 0


def find(name: str) -> Mechanism:
    """Return a mechanism by the name of its file, or of one of its classes.

    Raises:
      UserError: there is none.
    """
    for mechanism in mechanisms().values():
        if name in (mechanism.module, *mechanism.classes):
            return mechanism
    known = [name for mechanism in mechanisms().values() for name in (mechanism.module, *mechanism.classes)]
    raise UserError(f"mechanism is '{name}'{did_you_mean(name, known)}")


def show(mechanism: Mechanism, console: Console) -> None:
    """Print what was measured, and the file of a mechanism, whose docstring has equation, source, claim and cost."""
    console.print(Text(str(mechanism.path), style="dim"), soft_wrap=True)
    for effect in mechanism.effects:
        console.print(f"Measured gain: {effect}")
    console.print(Syntax(mechanism.path.read_text().rstrip(), "python", theme="ansi_light", word_wrap=True))


def show_list(chosen: Sequence[Mechanism], console: Console) -> None:
    """Print a line per mechanism, family by family."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True, justify="right")
    for family, members in _by_family(chosen):
        table.add_row(Text(family, style="bold"), "", "", "")
        for mechanism in members:
            table.add_row(f"  {mechanism.module}", str(mechanism.year), mechanism.summary, mechanism.gains)
    console.print(table)
    if any(mechanism.effects for mechanism in chosen):
        console.print("\nOn the right: measured gain of the test loss at equal compute (experts: steps), in nats.")
    console.print(f"\n{count_of(len(chosen), 'mechanism')}. flaxformer catalog NAME shows one.")


def page(chosen: Sequence[Mechanism]) -> Iterator[str]:
    """Yield the lines of docs/catalog.md: a table per family."""
    yield PAGE
    for family, members in _by_family(chosen):
        yield f"## {family.capitalize()}\n"
        yield f"| {' | '.join(COLUMNS)} |"
        yield "|" + " --- |" * len(COLUMNS)
        for mechanism in members:
            link = f"[{mechanism.name}](../flaxformer/catalog/{mechanism.module}.py)"
            source = mechanism.source.partition(";")[0].rstrip(".")
            cells = link, mechanism.summary, source, mechanism.gains, mechanism.verified
            yield f"| {' | '.join(cells)} |"
        yield ""
    yield "## Not in the catalog\n"
    yield from (f"- {name}: {reason}." for name, reason in ABSENT.items())
    yield ""


def _by_family(chosen: Sequence[Mechanism]) -> Iterator[tuple[str, Iterator[Mechanism]]]:
    return itertools.groupby(chosen, key=lambda mechanism: mechanism.family)
