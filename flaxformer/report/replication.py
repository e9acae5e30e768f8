"""Replication in words: a table of committed and fresh effects side by side, as Markdown and HTML."""

from collections.abc import Sequence
from pathlib import Path

from flaxformer.analysis.replication import ReplicatedClaim
from flaxformer.report import html, markdown, numbers, phrasing, verdicts
from flaxformer.report.table import Table
from flaxformer.report.texts import passive, write_printable
from flaxformer.system.wording import count_of

NAME = "replication"
NOTE = (
    "Predicted: the 95 % prediction interval of the fresh mean, from the first study; a cross marks a fresh mean "
    "outside it, which chance gives in 1 of 20."
)


def table(claims: Sequence[ReplicatedClaim]) -> Table:
    """A row per claim: effect and verdict in the first study and at fresh seeds, and the predicted range."""
    rows = []
    for claim in claims:
        first, fresh, half = claim.first, claim.fresh, (claim.high - claim.low) / 2
        low, high = numbers.numbers((claim.low, claim.high), half)
        row = [first.text, phrasing.effect(first), verdicts.verdict_of(first), phrasing.effect(fresh)]
        row += [verdicts.verdict_of(fresh), f"{low} to {high}" + ("" if claim.is_predicted else " ✗")]
        rows.append([*row, str(first.judgement.effect.n), str(fresh.judgement.effect.n)])
    header = ["claim", "first effect", "first verdict", "fresh effect", "fresh verdict", "predicted", "seeds", "fresh"]
    return Table("Replication", header, rows, 6)


def answer(claims: Sequence[ReplicatedClaim]) -> str:
    """The number of verdicts that are the same at fresh seeds, and the claims whose verdicts differ."""
    same = sum(claim.has_same_verdict for claim in claims)
    texts = [f"{same} of {count_of(len(claims), 'verdict')} {'replicates' if len(claims) == 1 else 'replicate'}"]
    undecided = sum(claim.has_same_verdict and claim.first.judgement.verdict == "inconclusive" for claim in claims)
    texts += [f"{undecided} of them inconclusive both times"] if undecided else []
    for claim in claims:
        if not claim.has_same_verdict:
            before, after = claim.first.judgement.verdict, claim.fresh.judgement.verdict
            texts.append(f"{claim.first.text.rstrip('. ')}: {before}, then {after}")
    outside = sum(not claim.is_predicted for claim in claims)
    texts.append(f"{outside or 'no'} fresh {'effect is' if outside < 2 else 'effects are'} outside the predicted range")
    return f"{'; '.join(texts)}."


def write(folder: Path, question: str, claims: Sequence[ReplicatedClaim]) -> Path:
    """Write replication.md and replication.html into a folder, and return the path of the page."""
    shown = table(claims)
    text = f"# {passive(question)}\n\n{passive(answer(claims))}\n\n{markdown.table(shown)}\n{NOTE}\n"
    fragments = [f"<h1>{html.escape(question)}</h1>", f'<p class="answer">{html.escape(answer(claims))}</p>']
    fragments += [html.table(shown), f'<p class="soft">{html.escape(NOTE)}</p>']
    write_printable(folder / f"{NAME}.md", text)
    write_printable(folder / f"{NAME}.html", html.page("Replication", fragments))
    return folder / f"{NAME}.html"
