"""First line of a ledger's log: what the ledger holds fixed, written once and compared with every later declaration."""

from pathlib import Path

from flaxformer.ledger.declare import Ledger
from flaxformer.ledger.log import Begun
from flaxformer.system.errors import UserError
from flaxformer.system.json_differences import differences
from flaxformer.system.typed_data import plain


def begun_of(ledger: Ledger, unit: str, recipe: str, data: str, semantics: int) -> Begun:
    """Return the first entry of a ledger's log."""
    names = (field for field in Begun.__struct_fields__ if hasattr(ledger, field) and field != "compare")
    compare = None if ledger.compare is None else _plain_rule(ledger.compare)
    fields = {name: getattr(ledger, name) for name in names}
    steps = ledger.start.training.steps if ledger.budget else 0
    return Begun(**fields, steps=steps, unit=unit, compare=compare, recipe=recipe, data=data, semantics=semantics)


def _plain_rule(rule: object) -> dict[str, object]:
    """An equal-cost rule as plain data."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(rule).items()}


def check_begun(old: Begun, new: Begun, root: Path) -> None:
    """Refuse a ledger whose declaration was changed after its first attempt.

    Raises:
      UserError: what differs.
    """
    ignored = ("time", "flaxformer", "previous")
    before, after = ({k: v for k, v in plain(entry).items() if k not in ignored} for entry in (old, new))
    if before != after:
        lines = "; ".join(differences(before, after))
        raise UserError(
            f"{root} holds a ledger with another declaration: {lines}; expected the same file, or another --output"
        )
