"""Estimates of the claims of a study that is not finished, for `flaxformer status --watch`."""

from rich.console import Group, RenderableType
from rich.text import Text

from flaxformer.analysis.analysis import Analysis, analyse_to_show
from flaxformer.report import phrasing
from flaxformer.report.verdicts import STYLES
from flaxformer.store.store import Store
from flaxformer.system.wording import count_of


def estimates(store: Store) -> RenderableType:
    """The estimate of each claim from the runs so far, which is recorded as an interim analysis."""
    return claims_view(analyse_to_show(store, "status"))


def claims_view(analysis: Analysis) -> RenderableType:
    """The estimate of each claim from the runs so far; there is no verdict before all have ended."""
    texts = []
    for claim in analysis.claims:
        n = claim.judgement.effect.n
        seeds = count_of(n, "seed") if n else "no seed yet"
        estimate = f"{phrasing.effect(claim)}, claimed {phrasing.claim_text(claim)}, {seeds}" if n else seeds
        style = STYLES[claim.judgement.verdict] if not analysis.missing else ""
        texts.append(Text.assemble(f"{claim.text}: ", (estimate, style)))
    return Group(*texts)
