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


def table(found: Sequence[ReplicatedClaim]) -> Table:
    """A row per claim: effect and verdict in the first study and at fresh seeds, and the predicted range."""
    rows = []
    for one in found:
        half = (one.high - one.low) / 2
        low, high = numbers.numbers((one.low, one.high), half)
        row = [one.first.text, phrasing.effect(one.first), verdicts.verdict_of(one.first), phrasing.effect(one.fresh)]
        row += [verdicts.verdict_of(one.fresh), f"{low} to {high}" + ("" if one.is_predicted else " ✗")]
        rows.append([*row, str(one.first.judgement.effect.n), str(one.fresh.judgement.effect.n)])
    header = ["claim", "first effect", "first verdict", "fresh effect", "fresh verdict", "predicted", "seeds", "fresh"]
    return Table("Replication", header, rows, 6)


def answer(found: Sequence[ReplicatedClaim]) -> str:
    """The number of verdicts that are the same at fresh seeds, and the claims whose verdicts differ."""
    same = sum(one.has_same_verdict for one in found)
    parts = [f"{same} of {count_of(len(found), 'verdict')} {'replicates' if len(found) == 1 else 'replicate'}"]
    undecided = sum(one.has_same_verdict and one.first.judgement.verdict == "inconclusive" for one in found)
    parts += [f"{undecided} of them inconclusive both times"] if undecided else []
    for one in found:
        if not one.has_same_verdict:
            before, after = one.first.judgement.verdict, one.fresh.judgement.verdict
            parts.append(f"{one.first.text.rstrip('. ')}: {before}, then {after}")
    outside = sum(not one.is_predicted for one in found)
    parts.append(f"{outside or 'no'} fresh {'effect is' if outside < 2 else 'effects are'} outside the predicted range")
    return f"{'; '.join(parts)}."


def write(folder: Path, question: str, found: Sequence[ReplicatedClaim]) -> Path:
    """Write replication.md and replication.html into a folder, and return the path of the page."""
    own = table(found)
    text = f"# {passive(question)}\n\n{passive(answer(found))}\n\n{markdown.table(own)}\n{NOTE}\n"
    parts = [f"<h1>{html.escape(question)}</h1>", f'<p class="answer">{html.escape(answer(found))}</p>']
    parts += [html.table(own), f'<p class="soft">{html.escape(NOTE)}</p>']
    write_printable(folder / f"{NAME}.md", text)
    write_printable(folder / f"{NAME}.html", html.page("Replication", parts))
    return folder / f"{NAME}.html"
