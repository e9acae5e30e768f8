"""Limits of a study that follow from its log of declarations."""

from collections.abc import Iterable, Sequence

from flaxformer.study.claim_history import ClaimDeclaration, FurtherSeeds, seeds_in_words
from flaxformer.wording import counted

MOST_SETS = 6
"""Largest number of further sets of seeds that a limit lists."""


def log_limits(
    declarations: Iterable[ClaimDeclaration | None], further: FurtherSeeds, faults: Sequence[str]
) -> list[str]:
    """Return sentences on seeds that were chosen or left behind, and on faults of the log."""
    remarks = {remark for declaration in declarations if declaration for remark in declaration.remarks}
    found = [
        f"{remark[0].upper()}{remark[1:]}; verdicts after such a choice are wrong more often than stated."
        for remark in sorted(remarks)
    ]
    if further.sets:
        more = ["…"] if len(further.sets) > MOST_SETS else []
        shown = "; ".join([*map(seeds_in_words, further.sets[:MOST_SETS]), *more])
        found.append(
            f"{further} ({shown}; {counted(further.results, 'result')}). Where the seeds were chosen by their results, "
            "verdicts are wrong more often than stated."
        )
    if faults:
        found.append(
            f"The log of declarations was changed: {'; '.join(faults)}. No claim counts as declared before its data."
        )
    return found
