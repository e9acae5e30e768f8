"""Limits of a study that follow from its log of declarations."""

from collections.abc import Iterable, Sequence

from flaxformer.analysis.claim_history import ClaimDeclaration, FurtherSeeds, seeds_in_words
from flaxformer.store.declaration_log import DeclarationLog
from flaxformer.store.log_entries import Verification
from flaxformer.system.wording import count_of, join_words

MOST_NAMED = 6
"""Largest number of trials that a sentence names."""
MOST_SETS = 6
"""Largest number of further sets of seeds that a limit lists."""


def log_limits(
    declarations: Iterable[ClaimDeclaration | None], further: FurtherSeeds, log: DeclarationLog, faults: Sequence[str]
) -> list[str]:
    """Return sentences on seeds that were chosen or left behind, on rows that were forged, and on faults of the log."""
    remarks = {remark for declaration in declarations if declaration for remark in declaration.remarks}
    limits = [
        f"{remark[0].upper()}{remark[1:]}; verdicts after such a choice are wrong more often than stated."
        for remark in sorted(remarks)
    ]
    if further.sets:
        more = ["…"] if len(further.sets) > MOST_SETS else []
        shown = "; ".join([*map(seeds_in_words, further.sets[:MOST_SETS]), *more])
        limits.append(
            f"{further} ({shown}; {count_of(further.results, 'result')}). Where the seeds were chosen by their "
            "results, verdicts are wrong more often than stated."
        )
    for event in log.of(Verification)[-1:]:
        if event.different:
            limits.append(f"On {event.time[:10]}, {verification(event)}.")
    if faults:
        limits.append(
            f"The log of declarations was changed: {'; '.join(faults)}. No claim counts as declared before its data."
        )
    return limits


def verification(event: Verification) -> str:
    """The result of a verification in one clause."""
    n, different = len(event.trials), event.different
    tried = f"{n} of {count_of(event.finished, 'finished trial')} {'was' if n == 1 else 'were'} trained again"
    if not different:
        return f"{tried} by the code {event.source}: bitwise equal"
    names = [*list(different)[:MOST_NAMED], *(["others"] if len(different) > MOST_NAMED else [])]
    verb = "differs" if len(different) == 1 else "differ"
    return f"{tried} by the code {event.source}: {len(different)} {verb} ({join_words(names)})"


def foreign_limits(names: Sequence[str], results: int) -> list[str]:
    """Return a sentence on results that are not of the trial whose name they hold; `run` refuses a folder with one.

    Args:
      names: their trials.
      results: number of all results.
    """
    if not names:
        return []
    return [
        f"{len(names)} of {results} results have another recipe or seed than their trial (such as {names[0]}): they "
        "were changed by hand, or copied from another folder, and are left out."
    ]
