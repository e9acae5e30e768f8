"""Opening of a ledger's folder, with the steps that its budget gives to the start."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flaxformer.core.overrides import override
from flaxformer.core.paths import replace_at
from flaxformer.ledger import candidates, log
from flaxformer.ledger.budget import RunBudget, with_budget
from flaxformer.ledger.declare import Ledger
from flaxformer.ledger.improve import OpenLedger
from flaxformer.runner.execution import Execution
from flaxformer.runner.launchers.options import Share
from flaxformer.study.equal_cost import changes_of_steps
from flaxformer.study.load import load
from flaxformer.system.errors import UserError
from flaxformer.system.python_files import find_experiment
from flaxformer.training.run import Run


def open_ledger(
    ledger: Ledger,
    root: Path,
    execution: Execution,
    trust_code: bool = False,
    budget: str = "",
    share: Share | None = None,
) -> OpenLedger:
    """Open a folder for a ledger; its start gets the steps of the budget.

    A budget in seconds is measured for a new folder. One that has begun has the steps of its log.

    Args:
      ledger: the declaration.
      root: folder of the ledger.
      execution: how to run.
      trust_code: True to execute the copies of candidates' files in the folder.
      budget: budget of a run, in place of the declared one.
      share: share of the runs that this process trains first.

    Raises:
      UserError: the text of the budget, one that allows no step, or another one than that of a ledger that has begun.
    """
    begun = _begun(root)
    if budget:
        RunBudget.of(budget)
    budget = budget or ledger.budget or ("" if begun is None else begun.budget)
    if begun is not None and begun.budget != budget:
        raise UserError(
            f"{root} holds a ledger with another declaration: budget: '{begun.budget}' -> '{budget}'; expected the "
            "same one, or another --output"
        )
    if budget:
        run = ledger.start
        if begun is None:  # of several processes that measure at once, the first one's steps are those of the ledger
            measured = dataclasses.replace(ledger, start=with_budget(run, budget), budget=budget)
            declared = OpenLedger(measured, root, execution).declare()
            begun = _begun(root) or declared
        ledger = dataclasses.replace(ledger, start=replace_at(run, changes_of_steps(run, begun.steps)), budget=budget)
    return OpenLedger(ledger, root, execution, trust_code, share=share)


def check_first(ledger: Ledger, root: Path, changes: Sequence[str], file: Path | None) -> None:
    """Check the first attempt of a ledger that has not begun, so that a mistake in it does not begin the ledger.

    Args:
      ledger: the declaration.
      root: folder of the ledger.
      changes: changes of the start, or of the run of `file`.
      file: file that declares the candidate as `run`; None for the start.

    Raises:
      UserError: a change that is not one of a run, or that no attempt may make.
    """
    if _begun(root) is not None:
        return
    candidates.check_not_adjusted(ledger, changes)
    candidate = override(ledger.start if file is None else load(find_experiment(file), "run", Run), changes)
    candidates.check_held(ledger.start, candidate)
    candidates.check_candidate(ledger.start, candidate)


def _begun(root: Path) -> log.Begun | None:
    """The first entry of a folder's log; None without one."""
    entries, _ = log.read(root)
    return entries[0] if entries and isinstance(entries[0], log.Begun) else None
