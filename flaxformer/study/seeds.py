"""Seeds of a study: their range, and the text that names them on a command line."""

import re
from collections.abc import Sequence

from flaxformer.system.errors import UserError, quote

LAST = 2**31 - 1
MOST = 1_000_000


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise UserError if there are no seeds, or if seeds repeat or are not valid."""
    if not seeds or len(set(seeds)) < len(seeds) or not all(isinstance(s, int) and 0 <= s <= LAST for s in seeds):
        raise UserError(
            f"seeds are {quote(seeds)}; expected at least one, all different, whole numbers from 0 to 2³¹ − 1"
        )


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that a text names: "4" for 0 to 3, "1000:1004" for 1000 to 1003, or a list such as "3,5,10:12".

    Raises:
      UserError: the text is malformed, names a seed twice, or names none.
    """
    ranges = text if {",", ":"} & {*text} else f"0:{text}"
    matches = [re.fullmatch(r"\s*([0-9]{1,10})\s*(?::\s*([0-9]{1,10})\s*)?", word) for word in ranges.split(",")]
    if not all(matches):
        raise UserError(
            f"seeds is {quote(text)}; expected a number N for 0 to N − 1, A:B for A to B − 1, or a list such as "
            "3,5,10:12"
        )
    seeds: list[int] = []
    for match in filter(None, matches):
        first = int(match[1])
        last = first + 1 if match[2] is None else int(match[2])
        if last > LAST + 1 or last - first > MOST:
            raise UserError(f"seeds is {quote(text)}; expected at most {MOST:,} seeds, each at most {LAST:,}")
        seeds += range(first, last)
    if len(set(seeds)) < len(seeds) or not seeds:
        what = "a seed twice" if seeds else "no seed"
        raise UserError(
            f"seeds is {quote(text)}, which names {what}; expected at least one, all different, such as 4 or 3,5,8"
        )
    return tuple(seeds)
