"""A study's or a probe's report as one page: the question, the answer, and everything that bears it out."""

import json
from collections.abc import Sequence
from html import escape

from flaxformer.report import html, phrasing, provenance_text, tables
from flaxformer.store.store import Row
from flaxformer.study.analysis import Analysis

CAPTIONS = {
    "claims": "The declared claims: each seed a dot, the mean with its 95 % t-interval above. Shaded is where the "
    "claim holds; a hollow mark is inconclusive, a cross refuted.",
    "arms": "Every arm: each seed a dot, the mean with its 95 % t-interval above.",
    "quantities": "What was measured: each seed a dot, the mean with its 95 % t-interval above.",
    "curves": "During training: means over seeds; bands are pointwise 95 % t-intervals.",
}


def render(analysis: Analysis, figures: dict[str, str], launches: Sequence[Row]) -> str:
    """The page: question, answer and main figure first; then findings, limits, figures, tables and provenance_text."""
    study = analysis.study
    drawn = [html.figure(svg, name, _caption(analysis, name)) for name, svg in figures.items()]
    curves = drawn.pop() if "curves" in figures else ""
    parts = [
        f"<h1>{escape(study['question'])}</h1>",
        f'<p class="soft">{escape(study["name"])} · {escape("; ".join(phrasing.fixed(analysis)))}</p>',
        f'<p class="answer {_worst(analysis)}">{escape(phrasing.verdict(analysis))}</p>',
        *drawn[:1],
        html.section("What was found", _claims(analysis)),
        html.section("Exploratory findings", _exploratory_findings(analysis)),
        html.section("What this does not show", html.listed(analysis.limits)),
        *drawn[1:],
        *(html.section(table.title, html.table(table)) for table in tables.of(analysis)),
        html.section("Learning curves", curves),
        html.section("Failed runs", _failures(analysis)),
        html.section("What ran where", html.defined(provenance_text.ran(analysis, launches))),
        html.section("How to reproduce", _reproduce(analysis, launches)),
    ]
    return html.page(study["name"], parts)


def _caption(analysis: Analysis, name: str) -> str:
    simple = phrasing.references(analysis) if name in ("arms", "curves") else ""
    dashed = f" Byte-count models on the same evaluation windows: {simple} (dashed where they are near)."
    return CAPTIONS[name] + (dashed if simple and analysis.study["metric"] == "validation_loss" else "")


def _worst(analysis: Analysis) -> str:
    """The verdict that colours the answer: refuted or inconclusive where one claim is, else supported."""
    found = {claim.judgement.verdict for claim in analysis.claims}
    return next((one for one in ("refuted", "inconclusive", "supported") if one in found), "")


def _claims(analysis: Analysis) -> str:
    items = [
        f'<li class="{verdict}"><b>{phrasing.MARKS[verdict]} {verdict}</b>: {escape(claim.text)}<br>'
        f'<span class="soft">{escape(phrasing.finding(claim))}</span></li>'
        for claim in analysis.claims
        for verdict in [claim.judgement.verdict]
    ]
    return f'<ul class="claims">{"".join(items)}</ul>' if items else ""


def _exploratory_findings(analysis: Analysis) -> str:
    if not analysis.exploratory_findings:
        return ""
    remark = f"Exploratory, among all {len(analysis.explorations)} one-step contrasts that no claim is about. "
    return (
        html.listed(phrasing.exploratory_findings(analysis))
        + f'<p class="soft">{remark}A new study has to confirm them.</p>'
    )


def _failures(analysis: Analysis) -> str:
    return "".join(f"<p>{escape(row['trial'])}</p>{html.code(row['error'])}" for row in analysis.failed[:3])


def _reproduce(analysis: Analysis, launches: Sequence[Row]) -> str:
    study, commands = analysis.study, provenance_text.commands(launches)
    dirty = any("+changes" in (launch.get("commit") or "") for launch in launches)
    place = "At the commit above, with the changes that the working tree had" if dirty else "At the commit above"
    parts = [f"<p>{place}:</p>{html.code(commands, wrapped=True)}"] if commands else []
    if copied := provenance_text.commands_for_copies(launches):
        parts.append("<p>Or in this folder, which keeps the code of the study as it ran:</p>")
        parts.append(html.code(copied, wrapped=True))
    seeds = ", ".join(map(str, study["seeds"]))
    what = "A run is decided by its recipe and its seed" if study["recipes"] else "A measurement is decided by its seed"
    parts.append(f"<p>{what}; the seeds are {seeds}. What is done already is not done again: give a new folder.</p>")
    if study["recipes"]:
        arm, recipe = next(iter(study["recipes"].items()))
        parts.append(
            html.folded(
                f"The whole recipe of '{arm}'", html.code(json.dumps(recipe["run"], indent=1, ensure_ascii=False))
            )
        )
        if others := provenance_text.changes(analysis):
            parts.append(html.folded("What the other arms change in it", html.listed(others)))
    return "".join(parts)
