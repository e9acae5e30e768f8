"""The report as one HTML file that opens offline: figures inlined, no script, no link to anywhere."""

import json
import re
from collections.abc import Iterable
from html import escape

from flaxformer.study import words
from flaxformer.study.analysis import Analysis

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ --ink: #1d1f23; --soft: #676b73; --line: #e4e4e0; --paper: #fdfdfb;
  --supported: #2f7d4f; --refuted: #b23b3b; --inconclusive: #8a6d1f; }}
body {{ font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--ink);
  background: var(--paper); max-width: 54rem; margin: 2.5rem auto 5rem; padding: 0 1.2rem; }}
h1 {{ font-size: 1.55rem; line-height: 1.25; margin: 0 0 .3rem; }}
h2 {{ font-size: 1.1rem; margin: 2.4rem 0 .6rem; }}
.soft, figcaption, th {{ color: var(--soft); }}
ul {{ padding-left: 1.2rem; }}
li {{ margin: .35rem 0; }}
.claims {{ list-style: none; padding: 0; }}
.claims li {{ border-left: 3px solid; padding: .1rem 0 .1rem .8rem; margin: .8rem 0; }}
.claims .supported {{ border-color: var(--supported); }} .supported b {{ color: var(--supported); }}
.claims .refuted {{ border-color: var(--refuted); }} .refuted b {{ color: var(--refuted); }}
.claims .inconclusive {{ border-color: var(--inconclusive); }} .inconclusive b {{ color: var(--inconclusive); }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); }}
td:not(:first-child), th {{ white-space: nowrap; }}
td.number, th.number {{ text-align: right; }}
figure {{ margin: 1.6rem 0; }} figure svg {{ max-width: 100%; height: auto; }}
figcaption {{ font-size: .88rem; }}
pre {{ background: #f4f4f0; padding: .8rem; overflow-x: auto; font-size: .8rem; }}
@media print {{ body {{ margin: 0; max-width: none; }} }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
CAPTIONS = {
    "arms": "Every run is a dot; diamonds are means with 95 % t-intervals over seeds. Dashed: byte-count models "
    "fitted to the training text, on the same evaluation windows.",
    "claims": "The declared claims: each seed's paired difference, and the mean with its 95 % t-interval.",
    "curves": "During training: means over seeds; bands are pointwise 95 % intervals.",
}


def render(analysis: Analysis, figures: dict[str, str], provenance: list[dict]) -> str:
    """The page: question, findings, limits first; then figures, tables and provenance."""
    study = analysis.study
    body = [
        f"<h1>{escape(study['question'])}</h1>",
        f'<p class="soft">{escape(study["name"])} · {escape("; ".join(words.fixed(analysis)))}</p>',
    ]
    if analysis.claims:
        items = [
            f'<li class="{claim.judgement.verdict}"><b>{claim.judgement.verdict}</b> — {escape(claim.text)}'
            f'<br><span class="soft">{escape(words.finding(claim))}</span></li>'
            for claim in analysis.claims
        ]
        body.append('<h2>What was found</h2><ul class="claims">' + "".join(items) + "</ul>")
    if analysis.surprises:
        body.append("<h2>What nobody claimed, and is there all the same</h2>")
        body.append(_list(words.surprises(analysis)))
        remark = f"Exploratory, among all {len(analysis.explorations)} one-step contrasts that no claim is about. "
        body.append(f'<p class="soft">{remark}A new study has to confirm them.</p>')
    if analysis.limits:
        body.append("<h2>What this does not show</h2>" + _list(analysis.limits))
    for name, svg in figures.items():
        body.append(f"<figure>{_inline(svg, name)}<figcaption>{CAPTIONS[name]}</figcaption></figure>")
    body += [
        _arms_table(analysis),
        _quantities_table(analysis),
        _claims_table(analysis),
        _explorations_table(analysis),
        _failures(analysis),
    ]
    body.append(_provenance(analysis, provenance))
    return PAGE.format(title=escape(study["name"]), body="\n".join(part for part in body if part))


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _inline(svg: str, name: str) -> str:
    """An SVG ready to stand beside others in one page: no XML prologue, ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)


def _table(caption: str, header: list[str], rows: list[list[str]], numbers_from: int) -> str:
    if not rows:
        return ""

    def line(cells: list[str], tag: str) -> str:
        marked = (
            f"<{tag}{' class=number' if i >= numbers_from else ''}>{escape(c)}</{tag}>" for i, c in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    head = line(header, "th")
    table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
    return f'<h2>{caption}</h2><div class="scroll">{table}</div>'


def _arms_table(analysis: Analysis) -> str:
    names = [axis["name"] for axis in analysis.study["axes"]]
    rows = []
    for arm in analysis.arms:
        mean = arm.estimate
        numbers = map(words.number, (mean.mean, mean.low, mean.high, mean.sd))
        rows.append([*arm.labels.values(), str(mean.n), *numbers, str(arm.diverged)])
    header = [*names, "seeds", "mean", "95 % low", "high", "sd", "diverged"]
    return _table(f"Arms: {analysis.study['metric'].replace('_', ' ')}", header, rows, len(names))


def _quantities_table(analysis: Analysis) -> str:
    rows = []
    for one in analysis.quantities:
        mean = one.estimate
        numbers = map(words.number, (mean.mean, mean.low, mean.high, mean.sd))
        rows.append([*one.labels.values(), str(mean.n), *numbers])
    return _table("Quantities", ["quantity", "seeds", "mean", "95 % low", "high", "sd"], rows, 1)


def _claims_table(analysis: Analysis) -> str:
    rows = []
    for claim in analysis.claims:
        judged = claim.judgement
        effect = (judged.effect.mean, judged.effect.low, judged.effect.high, judged.detectable)
        numbers = [*map(words.number, effect), words.number(judged.t, 1)]
        rows.append([claim.text, judged.verdict, *numbers, *map(words.p_value, (judged.p, judged.p_holm))])
    header = ["claim", "verdict", "effect", "95 % low", "high", "detectable", "t", "p", "p (Holm)"]
    return _table("Claims", header, rows, 2)


def _explorations_table(analysis: Analysis) -> str:
    rows = []
    for one in analysis.explorations:
        effect = one.judgement.effect
        numbers = [words.number(value) for value in (effect.mean, effect.low, effect.high)]
        contrast = [one.axis, f"{one.label} − {one.reference}", words.labels(one.context) or "–"]
        mark = "clear" if one.clear else "hint" if one.hint else ""
        rows.append([*contrast, *numbers, words.p_value(one.judgement.p_holm), mark])
    header = ["axis", "contrast", "with", "difference", "95 % low", "high", "p (Holm)", ""]
    return _table("Every one-step contrast that no claim is about", header, rows, 3)


def _failures(analysis: Analysis) -> str:
    shown = "".join(f"<p>{escape(row['cell'])}</p><pre>{escape(row['error'])}</pre>" for row in analysis.failed[:3])
    return f"<h2>Failed runs</h2>{shown}" if shown else ""


def _provenance(analysis: Analysis, launches: list[dict]) -> str:
    if not analysis.study["recipes"]:
        lines = [", ".join(f"{name} {value}" for name, value in launch.items()) for launch in launches[-5:]]
        return f"<h2>Provenance</h2>{_list(lines)}"
    arm, recipe = next(iter(analysis.study["recipes"].items()))
    data = ", ".join(f"{name} {value}" for name, value in recipe["data"].items()) or "generated from the seed"
    lines = [f"Data: {data}", f"Semantics: {recipe['semantics']}"]
    lines += [", ".join(f"{name} {value}" for name, value in launch.items()) for launch in launches[-5:]]
    shown = escape(json.dumps(recipe["run"], indent=1, ensure_ascii=False))
    details = f"<details><summary>The whole recipe of '{escape(arm)}'</summary><pre>{shown}</pre></details>"
    return f"<h2>Provenance</h2>{_list(lines)}{details}"
