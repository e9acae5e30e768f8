"""Report of a study or a probe as one page: the question, the answer, and the evidence."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from html import escape

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.claim_history import seeds_in_words
from flaxformer.analysis.sweep import Sweep
from flaxformer.report import (
    cost_tables,
    costs,
    descriptions,
    evaluation_tables,
    html,
    maps,
    measured,
    phrasing,
    provenance_text,
    qualifications,
    tables,
    verdicts,
)
from flaxformer.report.html import PageFigure
from flaxformer.report.table import MOST_ROWS, Table
from flaxformer.report.thinning import MOST_DOTS, thinned_remark
from flaxformer.store.rows import Row
from flaxformer.system.digests import JsonObject
from flaxformer.system.wording import count_of

MOST_SEEDS = 50
"""Number of seeds that are listed one by one."""

CAPTIONS = {
    "claims": "The declared claims: a dot per seed, and above the dots the mean with the interval that is tested (95 % "
    "for a difference, 90 % for an equality). The claim holds in the shaded region; a hollow mark is inconclusive, a "
    "cross refuted.",
    "arms": "Every arm: a dot per seed, and above the dots the mean with its 95 % t-interval.",
    "quantities": "Every quantity: a dot per seed, and above the dots the mean with its 95 % t-interval.",
    "curves": "During training: means over seeds; bands are pointwise 95 % t-intervals.",
    "compute": "Against the FLOPs of training so far: means over seeds; bands are pointwise 95 % t-intervals.",
    "sweep": "Means over seeds with 95 % t-intervals against the value; a ring marks the best value, and bars at the "
    "bottom are 95 % intervals of the optima.",
    "heads": "A number per layer and head of the first arm: the mean over seeds, and half the width of its 95 % "
    "t-interval; the shade is the mean over the largest of its panel. With several seeds, the heads of each layer are "
    "ranked in each seed.",
    "lens": "Loss of the head's output for the residual stream after each block (logit lens): means over seeds with "
    "95 % t-intervals.",
    "scaling": "Means over seeds with 95 % t-intervals against size, held-out sizes hollow; the fitted laws, dashed "
    "beyond the fitted sizes, up to ten times the largest size; bands are pointwise 95 % intervals of the laws.",
    "joint_law": "The joint law of each arm in parameters N and tokens D: means over seeds with 95 % t-intervals, "
    "held-out sizes hollow; the fitted law at each N, dashed where no run was fitted.",
}
MOST_TRACEBACKS = 5
STOPPED = " Hollow marks are arms that were stopped early, at their score then; it is not a final result."


def render(analysis: Analysis, figures: dict[str, PageFigure], launches: Sequence[JsonObject]) -> str:
    """Return the page: question, answer, main figure and its table, learning curves; then everything else."""
    study = analysis.study
    drawn = {name: _figure(analysis, name, own) for name, own in figures.items()}
    parts = [
        f"<h1>{escape(study.question)}</h1>",
        f'<p class="soft">{escape(study.name)} · {escape("; ".join(phrasing.describe_runs(analysis)))}</p>',
        f'<p class="answer {_worst_verdict(analysis)}">{escape(verdicts.verdict(analysis))}</p>',
        drawn.get("claims", ""),
        _table(tables.claims(analysis)),
        html.section("Qualifications", html.bullet_list(qualifications.by_claim(analysis.claims))),
        _table(tables.simple_effects(analysis)),
        _table(tables.without_diverged(analysis)),
        _table(tables.variances(analysis)),
        *_sweeps(analysis, drawn),
        html.section("Scaling", _scaling(analysis, drawn)),
        html.section("Learning curves", drawn.get("curves", "")),
        html.section("Heads", drawn.get("heads", "")),
        html.section("Attention maps", "".join(own for name, own in drawn.items() if name.startswith("maps"))),
        html.section("Logit lens", drawn.get("lens", "")),
        html.section("Exploratory contrasts", _explorations(analysis)),
        html.section("Limits", html.bullet_list(analysis.limits)),
        html.section("Arms", drawn.get("arms", "") + _body(tables.arms(analysis)) + _remark(analysis.coverage)),
        _table(evaluation_tables.evaluations(analysis)),
        html.section("Cost", _cost(analysis, drawn.get("compute", ""))),
        _table(cost_tables.effective_speed_ups(analysis)),
        html.section("Quantities", drawn.get("quantities", "") + _body(tables.quantities(analysis))),
        html.section(measured.TITLE, _body(measured.table(analysis)) + _remark(measured.remark(analysis))),
        html.section("Failed runs", _failures(analysis)),
        _table(tables.declarations(analysis)),
        html.section("Provenance", html.definition_list(provenance_text.provenance(analysis, launches))),
        html.section("How to reproduce", _reproduction(analysis, launches)),
    ]
    return html.page(study.name, parts)


def _figure(analysis: Analysis, name: str, own: PageFigure) -> str:
    kind = name.rstrip("0123456789")
    caption = maps.caption(analysis, _number(name)) if kind == "maps" else CAPTIONS[kind]
    caption += STOPPED if kind == "sweep" and len(analysis.stopped) else ""
    caption += thinned_remark(_sweep(analysis, name)) if kind == "sweep" else ""
    if max((len(arm.scores) for arm in [*analysis.arms, *analysis.quantities]), default=0) > MOST_DOTS:
        caption += f" Of more than {MOST_DOTS} seeds, {MOST_DOTS} have a dot, evenly spaced by rank."
    references = phrasing.references(analysis) if kind != "claims" else ""
    if references and analysis.study.metric == "validation_loss":
        caption += f" Count models on the same evaluation windows, dashed where they are near: {references}."
    return html.figure(own, name, caption, _description(analysis, name, kind))


def _description(analysis: Analysis, name: str, kind: str) -> str:
    if kind == "claims":
        return descriptions.describe_claims(analysis)
    if kind in ("curves", "compute"):
        return descriptions.describe_curves(analysis)
    if kind == "sweep":
        return descriptions.describe_sweep(analysis, _sweep(analysis, name))
    if kind == "scaling":
        return descriptions.describe_scaling(analysis)
    if kind == "joint_law":
        return descriptions.describe_joint_laws(analysis)
    if kind == "maps":
        return maps.description(analysis, _number(name))
    if kind in ("heads", "lens"):
        return descriptions.describe_heads(analysis) if kind == "heads" else descriptions.describe_lens(analysis)
    return descriptions.describe_scores(analysis, analysis.arms if kind == "arms" else analysis.quantities)


def _sweep(analysis: Analysis, name: str) -> Sweep:
    """The sweep of a figure."""
    return analysis.sweeps[_number(name)]


def _number(name: str) -> int:
    """Return the number from 0 of a figure of several, such as 1 for "sweep2"."""
    return int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 1) - 1


def _table(one: Table) -> str:
    """A table under its title; empty without rows."""
    return html.section(one.title, _body(one))


def _body(one: Table) -> str:
    return html.table(one) if one.rows else ""


def _cost(analysis: Analysis, figure: str) -> str:
    """The figure of the metric against compute, the table of costs, and the rule of comparison."""
    return figure + _body(cost_tables.arm_costs(analysis)) + _remark(costs.summary(analysis))


def _remark(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>' if text else ""


def _sweeps(analysis: Analysis, drawn: dict[str, str]) -> list[str]:
    """The figure and the table of each sweep."""
    found = enumerate(tables.sweeps(analysis), start=1)
    return [html.section(own.title, drawn.get(f"sweep{i if i > 1 else ''}", "") + _body(own)) for i, own in found]


def _scaling(analysis: Analysis, drawn: dict[str, str]) -> str:
    """The figures of the scaling laws, and their tables; empty for a study without any."""
    shown = [f"<h3>{escape(one.title)}</h3>{_body(one)}" for one in tables.scaling(analysis) if one.rows]
    return drawn.get("scaling", "") + drawn.get("joint_law", "") + "".join(shown)


def _worst_verdict(analysis: Analysis) -> str:
    """The verdict that colours the answer: refuted or inconclusive where a claim is, else supported."""
    found = {claim.judgement.verdict for claim in analysis.claims if not claim.is_exploratory}
    return next((one for one in ("refuted", "inconclusive", "supported") if one in found), "")


def _explorations(analysis: Analysis) -> str:
    """The contrasts that no claim is about: the findings, and the others on a click."""
    all_contrasts, n = tables.explorations(analysis), len(analysis.exploratory_findings)
    if not all_contrasts.rows:
        return ""
    findings, others = (dataclasses.replace(all_contrasts, title="", rows=rows, omitted=0)
                        for rows in (all_contrasts.rows[:n], all_contrasts.rows[n:]))  # fmt: skip
    remark = (
        f"Of {count_of(len(analysis.explorations), 'contrast')} that no claim is about, {n or 'none'} "
        f"{'is a finding' if n < 2 else 'are findings'}. They are exploratory: a new study has to confirm a finding."
    )
    noun = "other contrast" if n else "contrast"
    folded = html.details(count_of(len(others.rows), noun), html.table(others)) if others.rows else ""
    return f'<p class="soft">{escape(remark)}</p>{_body(findings)}{folded}{_remark(all_contrasts.remark)}'


def _failures(analysis: Analysis) -> str:
    """The causes with the number of runs of each, and a traceback of each of the first."""
    if not analysis.failed:
        return ""
    first: dict[str | None, Row] = {}
    runs: Counter[str | None] = Counter()
    for row in analysis.failed:
        first.setdefault(row.cause, row)
        runs[row.cause] += 1
    shown = [first[cause] for cause, _ in runs.most_common(MOST_TRACEBACKS)]
    tracebacks = [f"<p>{escape(row.trial)}</p>{html.code(str(row.error))}" for row in shown]
    return "".join([html.bullet_list(phrasing.failures(analysis)), *tracebacks])


def _reproduction(analysis: Analysis, launches: Sequence[JsonObject]) -> str:
    study, commands = analysis.study, provenance_text.commands(launches)
    has_changes = any("+changes" in (launch.get("commit") or "") for launch in launches)
    place = "At the commit above, with the changes that the working tree had" if has_changes else "At the commit above"
    parts = [f"<p>{place}:</p>{html.code(commands, is_wrapped=True)}"] if commands else []
    if copies := provenance_text.commands_for_copies(launches):
        where = "Or in this folder" if commands else "In this folder"
        parts.append(f"<p>{where}, which keeps the code of the study as it ran:</p>")
        parts.append(html.code(copies, is_wrapped=True))
    seeds = ", ".join(map(str, study.seeds))
    seeds = seeds if len(study.seeds) <= MOST_SEEDS else seeds_in_words(study.seeds)
    what = "The recipe and the seed determine a run" if study.recipes else "The seed determines a measurement"
    again = "Results that exist are not computed again: give a new output folder."
    parts.append(f"<p>{what}; the seeds are {seeds}. {again}</p>")
    return "".join([*parts, *_recipes(analysis)])


def _recipes(analysis: Analysis) -> list[str]:
    """The recipe of the first arm, and what the other arms change in it."""
    if not analysis.study.recipes:
        return []
    arm, recipe = next(iter(analysis.study.recipes.items()))
    text = json.dumps(recipe.run, indent=1, ensure_ascii=False)
    parts = [html.details(f"The recipe of '{arm}'", html.code(text))]
    if others := provenance_text.changes(analysis, MOST_ROWS):
        parts.append(html.details("Changes of the other arms", html.bullet_list(others)))
    return parts
