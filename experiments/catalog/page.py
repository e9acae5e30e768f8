"""Write the results of effects.py: README.md with a figure, and a page whose tables can be sorted and filtered.

Commands: python experiments/catalog/page.py --collect runs/catalog reads the finished studies into results/, which
    keeps the arms that the folder does not have;
    python experiments/catalog/page.py writes the pages from results/ alone; step_times.py adds the time per step.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import polars as pl
from arms import LEFT_OUT, NARANG, NARANG_BASELINE, NARANG_VANILLA, arms_by_family, module_of_arms
from effects import BASELINE, FORMS, TASKS, Form, arms_of, baseline_run, folder_name, form_of, middle_rate
from matplotlib.figure import Figure
from scipy import stats

import flaxformer
from flaxformer import Task
from flaxformer.analysis.speedup import at_common_score, compare_arms
from flaxformer.catalog import MultiQueryRecall, mechanisms
from flaxformer.report import html, markdown
from flaxformer.report.colours import GREY, VERDICT_COLOURS
from flaxformer.report.drawing import PAGE, STYLE
from flaxformer.report.numbers import round_digits
from flaxformer.report.reading import StudyResults
from flaxformer.report.table import Table
from flaxformer.statistics.corrections import benjamini_hochberg, holm
from flaxformer.system.files import write_atomically
from flaxformer.system.wording import count_of, signed
from flaxformer.training.cost import run_cost

HERE = Path(__file__).parent
RESULTS = HERE / "results"
EFFECTS = Path(flaxformer.__file__).parent / "catalog" / "effects.json"
INDEX = Path("runs/catalog/index.html")
"""The tables as a page."""
SOLVED = 0.995
"""Share of right answers at which a task is solved."""
ALL = "all"
"""What is compared in a study of all arms of a family; of one of some, their names."""
LEVEL = 0.05
"""False discovery rate."""
OF_A_RUN = (
    "seed",
    "status",
    "parameters",
    "flops",
    "seconds",
    "validation_loss",
    "test_loss",
    "test_accuracy",
    "validation_loss_curve",
)
AGAIN = {
    "kimi_delta_attention": "measured again, by the same rule, after its initial decay was corrected to that of the "
    "authors' code. The first results had pointed to it: with a bias of 0, whose memory fades in two tokens, it had "
    "+0.052 [+0.027, +0.078] (supported) on text, beside attention +0.072 [+0.010, +0.087] (inconclusive), and "
    "-2.355 [-2.702, -2.182] (refuted) on recall",
}
"""Mechanisms that changed after they were measured, and what they had before."""
COLUMNS = ("family", "arm", "effect", "95 %", "p Holm", "q", "verdict", "speed-up", "rate", "steps", "weights")
IN_TIME = ("step time", "speed-up in time")
ACCURACY = "accuracy"
BESIDE = ("arm", "their row", "their gain", "gain here", "verdict here", "agreement")


class Answer(NamedTuple):
    """Effects of a task and a form, with the baseline's run."""

    task: str
    form: str
    effects: pl.DataFrame
    """A row per arm; with `step_time`, relative to the baseline's, if it was measured."""

    @property
    def name(self) -> str:
        return f"{self.task}-{self.form}"

    @property
    def has_times(self) -> bool:
        return "step_time" in self.effects.columns

    @property
    def has_accuracies(self) -> bool:
        """True if the task is one whose answers are right or wrong, of which each arm has a share."""
        return self.task == "recall"

    @property
    def table(self) -> Table:
        """A row per arm."""
        columns = COLUMNS + IN_TIME * self.has_times + (ACCURACY,) * self.has_accuracies
        return Table("", columns, [self.cells(row) for row in self.effects.iter_rows(named=True)], 2)

    def cells(self, row: dict[str, Any]) -> list[str]:
        """The cells of an arm in the table."""
        more = [*in_time(row, form_of(self.task, self.form).steps)] if self.has_times else []
        return cells(row) + more + ([f"{row['accuracy']:.2f}"] if self.has_accuracies else [])


def collect(folder: Path, task: str, form: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a row per arm of the finished families, and a row per run."""
    effects: list[dict[str, Any]] = []
    runs: list[pl.DataFrame] = []
    for family in arms_by_family():
        path = folder / folder_name(task, form, family, "effects")
        if not (path / "study.json").exists() or (results := flaxformer.results(path)).analysis.missing:
            continue
        arms, every = (
            {*labels} - {BASELINE} for labels in (results.table["arm"], arms_of(task, form_of(task, form), family))
        )
        compared = ALL if arms == every else ", ".join(sorted(arms))
        rows = _effects_of(results, family, form_of(task, form))
        effects += [row | {"compared": compared} for row in rows]
        tuning = sorted(folder.glob(folder_name(task, form, family, "rates-*")))
        for part, table in [("effects", results.table), *(("rates", flaxformer.results(one).table) for one in tuning)]:
            columns = [name for name in ("arm", "rate", *OF_A_RUN) if name in table.columns]
            about = {"family": family, "part": part, "compared": compared}
            runs.append(table.select(*(pl.lit(value).alias(name) for name, value in about.items()), *columns))
    if not effects:
        raise SystemExit(f"{folder} has no finished study of {task}, {form}; run effects.py first")
    return pl.DataFrame(effects, infer_schema_length=None), pl.concat(runs, how="diagonal_relaxed")


def add_to_recorded(table: pl.DataFrame, file: Path) -> pl.DataFrame:
    """Return the rows of a table, and those of a file of other families, or of other arms where it has but some."""
    if not file.exists():
        return table
    recorded = pl.read_parquet(file)
    if "compared" not in recorded.columns:
        recorded = recorded.with_columns(compared=pl.lit(ALL))
    whole = table.filter(pl.col("compared") == ALL)["family"].unique()
    recorded = recorded.filter(~pl.col("family").is_in(whole.to_list()))
    arms = table.filter(pl.col("arm") != BASELINE)
    recorded = recorded.join(arms, on=("family", "arm"), how="anti")
    recorded = recorded.join(table, on=("family", "arm", "compared"), how="anti")
    return pl.concat([recorded, table], how="diagonal_relaxed")


def with_discoveries(effects: pl.DataFrame) -> pl.DataFrame:
    """Return the effects of all families in order, corrected within each, with the false discovery rate of each."""
    families = [_with_holm(family) for family in effects.partition_by("family", maintain_order=True)]
    effects = pl.concat(families)
    q = benjamini_hochberg(effects["p"].to_list())
    return effects.with_columns(pl.Series("q", q)).sort("effect", descending=True)


def _with_holm(effects: pl.DataFrame) -> pl.DataFrame:
    """Correct the p-values of a family, of which some arms may be from a later study; one that was 1 stays 1."""
    rows = list(effects.iter_rows(named=True))
    corrected = holm([1.0 if row["p_holm"] >= 1 else row["p"] for row in rows])
    verdicts = [
        "inconclusive" if p >= LEVEL else "supported" if row["effect"] > 0 else "refuted"
        for p, row in zip(corrected, rows, strict=True)
    ]
    return effects.with_columns(pl.Series("p_holm", corrected), pl.Series("verdict", verdicts))


def _effects_of(results: StudyResults, family: str, form: Form) -> Iterator[dict[str, Any]]:
    study, arms = results.analysis.study, {arm.labels["arm"]: arm for arm in results.arms}
    recipes = {declared.labels["arm"]: study.recipes[declared.arm].run for declared in study.arms}
    accuracies = dict(results.table.group_by("arm").agg(pl.col("test_accuracy").mean()).iter_rows())
    for claim in results.claims:
        label = claim.text.partition(": ")[0]
        arm, judged, recipe = arms[label], claim.judgement, recipes[label]
        cost, reference = arm.cost, arms[BASELINE].cost
        pair = compare_arms(study, arm, arms[BASELINE])
        speed = pair and at_common_score(pair.compute, pair.compute_to_baseline)
        yield {
            "family": family,
            "arm": label,
            "effect": judged.effect.mean,
            "low": judged.effect.low,
            "high": judged.effect.high,
            "n": judged.effect.n,
            "p": judged.p,
            "p_holm": judged.p_holm,
            "verdict": judged.verdict,
            "baseline": arms[BASELINE].estimate.mean,
            "speed_up": speed.ratio if speed else None,
            "speed_up_low": speed.interval[0] if speed else None,
            "speed_up_high": speed.interval[1] if speed else None,
            "rate": recipe["optimizer"]["learning_rate"],
            "baseline_rate": recipes[BASELINE]["optimizer"]["learning_rate"],
            "relative_rate": recipe["optimizer"]["learning_rate"] / middle_rate(form, label),
            "steps": recipe["training"]["steps"],
            "parameters": cost and cost.parameters,
            "flops": cost.flops / reference.flops if cost and reference else None,
            "diverged": arm.diverged,
            "accuracy": accuracies[label],
        }


def forest(answer: Answer) -> Figure:
    """Effects with their intervals, from the most helpful to the most harmful."""
    table = answer.effects
    figure = Figure(figsize=(PAGE, 0.13 * len(table) + 0.7), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(table.iter_rows(named=True)):
        colour = VERDICT_COLOURS[row["verdict"]]
        axes.plot([row["low"], row["high"]], [place, place], color=colour, lw=1)
        axes.plot(row["effect"], place, "o", ms=3, color=colour, mfc="white" if row["q"] > LEVEL else colour)
    widest = 3 * float(table["effect"].abs().quantile(0.9) or 1)
    left, right = max(-widest, min(table["low"])), min(widest, max(table["high"]))
    for place, row in enumerate(table.iter_rows(named=True)):
        colour = VERDICT_COLOURS[row["verdict"]]
        for goes_on, edge, mark in ((row["low"] < left, left, "<"), (row["high"] > right, right, ">")):
            if goes_on:
                axes.plot(edge, place, mark, ms=4, color=colour, clip_on=False)
    axes.set_xlim(left, right)
    axes.axvline(0, color=GREY, lw=0.8)
    axes.set_yticks(range(len(table)), [f"{row['arm']}" for row in table.iter_rows(named=True)])
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set_xlabel(f"gain of test loss on '{answer.task}' (nats); to the right, better")
    return figure


def number(value: float | None) -> str:
    """A number with its sign; "–" for None or NaN."""
    return "–" if value is None or math.isnan(value) else signed(value)


def cells(row: dict[str, Any]) -> list[str]:
    """The cells of an arm under `COLUMNS`."""
    edge = "" if abs(math.log(row["relative_rate"])) < 0.1 else " (edge)"
    return [
        row["family"],
        row["arm"],
        number(row["effect"]),
        f"[{number(row['low'])}, {number(row['high'])}]",
        round_digits(row["p_holm"]),
        round_digits(row["q"]),
        row["verdict"],
        speed_up(row, 1.0),
        f"{row['rate']:.2g}{edge}",
        str(row["steps"]),
        f"{row['parameters']:,}",
    ]


def in_time(row: dict[str, Any], steps: int) -> tuple[str, str]:
    """The time per step of an arm relative to the baseline's, and the speed-up in time.

    A speed-up in compute, times the compute per step, divided by the time per step, each relative to the baseline's.

    Args:
      row: effect of the arm.
      steps: number of steps of the baseline.
    """
    if row["step_time"] is None:
        return "–", "–"
    per_step = row["flops"] * steps / row["steps"]
    return f"{row['step_time']:.2f}", speed_up(row, per_step / row["step_time"])


def speed_up(row: dict[str, Any], factor: float) -> str:
    """The speed-up in compute times a factor, with its interval."""
    value, low, high = (row[name] for name in ("speed_up", "speed_up_low", "speed_up_high"))
    if value is None:
        return "–"
    interval = "" if math.isnan(low) else f" [{factor * low:.2f}, {factor * high:.2f}]"
    return f"{factor * value:.2f}{interval}"


def narang(answer: Answer) -> list[str]:
    """Agreement with Narang et al. 2021: signs where their difference is clear, and ranks."""
    known = [row for row in answer.effects.iter_rows(named=True) if row["arm"] in NARANG]
    if len(known) < 3:
        return []
    rows, gains, agree, clear = [], [], 0, 0
    for row in known:
        name, loss, deviation = NARANG[row["arm"]]
        reference, spread = NARANG_BASELINE.get(row["arm"], NARANG_VANILLA)
        published = reference - loss
        gains.append(published)
        is_clear = abs(published) > 3 * math.hypot(spread, deviation)
        clear += is_clear
        agree += is_clear and published * row["effect"] > 0
        mark = ("same sign" if published * row["effect"] > 0 else "other sign") if is_clear else "within their noise"
        rows.append([row["arm"], name, number(published), number(row["effect"]), row["verdict"], mark])
    correlation = stats.spearmanr(gains, [row["effect"] for row in known])
    return [
        f"## Beside Narang et al. 2021, table 1 ({answer.task})",
        "",
        f"Of {count_of(clear, 'row')} whose published early loss differs from the vanilla Transformer's by more than "
        f"three standard deviations, {agree} have the same sign here. Rank correlation over {len(known)} rows: "
        f"{correlation.statistic:+.2f} (p = {correlation.pvalue:.2g}). Theirs are encoder-decoders of 223M weights on "
        "C4 (span corruption, loss after 65,536 steps, one learning rate for all).",
        "",
        markdown.table(Table("", BESIDE, rows, 2)),
        "",
    ]


def mechanism_sections(answers: Sequence[Answer]) -> list[str]:
    """Per mechanism of the catalog: what its source claims, and what was measured here."""
    lines, modules = ["## Mechanism by mechanism", ""], module_of_arms()
    for module, mechanism in mechanisms().items():
        measured = [
            f"{answer.task}: {row['arm']} {number(row['effect'])} [{number(row['low'])}, {number(row['high'])}], "
            f"{row['verdict']}"
            for answer in answers
            for row in answer.effects.iter_rows(named=True)
            if modules.get(row["arm"]) == module
        ]
        if module in LEFT_OUT and mechanism.family != "tasks":
            measured = [f"not compared: {LEFT_OUT[module]}"]
        if measured:
            lines += [
                f"### {mechanism.name}",
                "",
                f"- Published ({mechanism.source.partition(',')[0]}): {mechanism.claim}",
                *(f"- Here, {text}." for text in measured),
                *([f"- Here, {AGAIN[module]}."] if module in AGAIN else []),
                "",
            ]
    return lines


def measured_effects(answers: Sequence[Answer]) -> dict[str, list[dict[str, object]]]:
    """Return the effects of the arms of each file of the catalog, which `flaxformer catalog` shows."""
    modules, effects = module_of_arms(), dict[str, list[dict[str, object]]]()
    for answer in answers:
        weights = run_cost(baseline_run(answer.task, form_of(answer.task, answer.form))).parameters.total
        for row in answer.effects.iter_rows(named=True):
            if (module := modules.get(row["arm"])) is not None:
                gains = {"gain": row["effect"], "low": row["low"], "high": row["high"]}
                effects.setdefault(module, []).append(
                    {"task": answer.task, "weights": weights, "arm": row["arm"]}
                    | {name: float(f"{value:.4g}") for name, value in gains.items()}
                    | {"verdict": row["verdict"]}
                )
    return dict(sorted(effects.items()))


def readme(answers: Sequence[Answer]) -> str:
    """The page of all answers as Markdown."""
    lines = [
        "# Which mechanisms of the catalog lower the loss?",
        "",
        "Every mechanism of the [catalog](../../docs/catalog.md) and the choices of the core, against one baseline: at "
        "equal compute (networks with experts: at equal steps), each at its best of three learning rates (tuned on "
        "another seed), over paired seeds, on test data that chose nothing. One claim per arm, declared before its "
        "data. [effects.py](effects.py) has the rule and the command, [arms.py](arms.py) the arms. "
        "`python experiments/catalog/page.py` writes this page from `results/`, and `runs/catalog/index.html`, whose "
        "tables can be sorted and filtered.",
        "",
    ]
    for answer in answers:
        lines += _answer(answer)
    lines += [line for answer in answers if answer.task != "recall" for line in narang(answer)]
    lines += mechanism_sections(answers)
    lines += [
        "## Why these may differ from what was published",
        "",
        "- Size: these models have 0.2 M weights (small) or 4.8 M (gpu). Gains that grow with width, depth or length "
        "cannot show at 4 layers and 64 tokens: caches, recurrence over long contexts, experts, and remedies for deep "
        "or unstable models.",
        "- Length of training: some mechanisms speed up the first steps, and others, such as slow averages, need many.",
        "- Compute: a mechanism that costs a tenth more compute gets a tenth fewer steps here. Sources often compare "
        "at equal steps.",
        "- Tuning: only the learning rate is tuned, at three values, on one seed. `(edge)` marks a best rate at an end "
        "of the grid. On recall the loss falls suddenly, at a step that varies with the seed: the choice of the rate "
        "has chance in it, and an arm whose loss is high may not have begun to learn by its last step.",
        "",
    ]
    return "\n".join(lines).rstrip() + "\n"


def _answer(answer: Answer) -> list[str]:
    table, form = answer.effects, form_of(answer.task, answer.form)
    baseline = baseline_run(answer.task, form)
    cost = run_cost(baseline)
    discoveries = table.filter(pl.col("q") <= LEVEL)
    better, worse = (discoveries.filter(pl.col("effect") * sign > 0) for sign in (1, -1))
    verdicts = [f"{table.filter(pl.col('verdict') == name).height} {name}" for name in VERDICT_COLOURS]
    return [
        f"## {answer.task}, form {answer.form}",
        "",
        f"{count_of(table.height, 'arm')} of these families: {', '.join(sorted(set(table['family'])))}. Baseline: "
        f"{cost.parameters.total:,} weights, {form.steps} steps of {form.batch_size} sequences of "
        f"{baseline.task.sequence_length} tokens, {len(form.seeds)} paired seeds. "
        f"Verdicts, after Holm within a family: {', '.join(verdicts)}. "
        f"At a false discovery rate of {100 * LEVEL:.0f} % over all arms "
        f"(Benjamini and Hochberg), {better.height} arms are better than the baseline and {worse.height} worse.",
        "",
        f"![Effects of all arms on {answer.task}](results/{answer.name}.svg)",
        "",
        "Effects are gains of the test score over the baseline's, with 95 % intervals over paired seeds; a speed-up is "
        "the compute that the baseline needs for the final loss that both reach, divided by that of the arm. A hollow "
        f"mark is no discovery, and a triangle an interval that goes on beyond the figure."
        f"{again_text(answer)}{times_text(answer)}{accuracy_text(answer, baseline.task)}",
        "",
        markdown.table(answer.table),
    ]


def again_text(answer: Answer) -> str:
    """A sentence on arms that were measured again; empty without them."""
    if "compared" not in answer.effects.columns:
        return ""
    again = answer.effects.filter(pl.col("compared") != ALL)["arm"].sort().to_list()
    if not again:
        return ""
    return f" Measured again in a study of their own, beside the baseline: {', '.join(again)} (see below)."


def times_text(answer: Answer) -> str:
    """A sentence on the columns of time; empty without them."""
    if not answer.has_times:
        return ""
    machines = ", ".join(sorted(answer.effects["machine"].drop_nulls().unique()))
    return (
        " The time per step is relative to the baseline's, measured in turns in one process (step_times.py); the "
        "speed-up in time is that in compute at these times, whose own spread is not in its interval. Machine: "
        f"{machines}."
    )


def accuracy_text(answer: Answer, task: Task) -> str:
    """Sentences on what guesses reach, and on arms at the ceiling; empty without accuracies."""
    if not answer.has_accuracies:
        return ""
    right = answer.effects.filter(pl.col("accuracy") >= SOLVED).height
    guesses = ""
    if isinstance(task, MultiQueryRecall):
        guesses = (
            f" A guess among all values is right in {100 * task.chance:.3g} % of the cases, a guess among those of the "
            f"example, which recalls no pair, in {100 / task.pairs:.3g} %."
        )
    return (
        f"{guesses} {right} of {count_of(answer.effects.height, 'arm')} answer at least {100 * SOLVED:g} % right: the "
        "task has its ceiling there, and does not rank them."
    )


def page(answers: Sequence[Answer]) -> str:
    """The tables as an HTML page."""
    parts = ["<h1>Which mechanisms of the catalog lower the loss?</h1>"]
    parts += [html.section(f"{answer.task}, form {answer.form}", html.table(answer.table)) for answer in answers]
    return html.page("Effects of the catalog", parts)


def read_answers() -> list[Answer]:
    """The recorded answers, in the order of tasks and forms."""
    files = {(task, form): RESULTS / f"{task}-{form}-effects.parquet" for task in TASKS for form in FORMS}
    return [
        Answer(*name, with_times(pl.read_parquet(file), file.with_name(file.name.replace("effects", "times"))))
        for name, file in files.items()
        if file.exists()
    ]


def with_times(effects: pl.DataFrame, file: Path) -> pl.DataFrame:
    """Return the effects with the measured times per step, if there is a file of them."""
    return effects.join(pl.read_parquet(file), on=("family", "arm"), how="left") if file.exists() else effects


def main(arguments: Sequence[str]) -> None:
    """Collect finished studies if asked for, and write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--collect", type=Path, help="folder of results of effects.py")
    parser.add_argument("--task", choices=TASKS, default="text")
    parser.add_argument("--form", choices=FORMS, default="small")
    options = parser.parse_args(arguments)
    RESULTS.mkdir(exist_ok=True)
    if options.collect is not None:
        effects, runs = collect(options.collect, options.task, options.form)
        files = [RESULTS / f"{options.task}-{options.form}-{part}.parquet" for part in ("effects", "runs")]
        with_discoveries(add_to_recorded(effects, files[0])).write_parquet(files[0])
        add_to_recorded(runs, files[1]).write_parquet(files[1])
    answers = read_answers()
    with mpl.rc_context(STYLE):
        for answer in answers:
            forest(answer).savefig(RESULTS / f"{answer.name}.svg", metadata={"Date": None})
    write_atomically(HERE / "README.md", readme(answers).encode())
    write_atomically(EFFECTS, (json.dumps(measured_effects(answers), indent=1, ensure_ascii=False) + "\n").encode())
    INDEX.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(INDEX, page(answers).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
