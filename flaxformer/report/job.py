"""The report of a training job: its curves, scores, samples, cost and config, as a page and in a few lines."""

import dataclasses
import functools
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flaxformer.report import data_card
from flaxformer.report.colours import COLOURS, GREY
from flaxformer.report.numbers import number
from flaxformer.report.sections import Code, Definitions, Figure, Folded, Paragraph, Part, ReportSection, StudyReport
from flaxformer.report.table import PAGE, Table
from flaxformer.report.texts import write_printable
from flaxformer.store import job_log
from flaxformer.store.job_log import LogLine
from flaxformer.store.line_forms import command_words
from flaxformer.store.places import REPORT
from flaxformer.system.digests import DamagedError, JsonObject, read_document
from flaxformer.system.errors import UserError, quote
from flaxformer.system.links import check_file, check_places, output_folder
from flaxformer.system.wording import count_of, duration, with_prefix

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

CONFIG = "config.json"
METRIC = "validation_loss"
MOST_SAMPLES, MOST_EVALUATIONS = 6, 40
"""Largest numbers of samples and of evaluations that the page shows; the log has all."""
SMOOTHED = 50
"""Points of the curve of the training loss, each a mean over the steps since the point before."""


def is_job(folder: Path) -> bool:
    """True for the output folder of `train`."""
    return (folder / CONFIG).is_file() and (folder / job_log.NAME).is_file()


@dataclasses.dataclass(frozen=True)
class JobResults:
    """Results of a training job: its config and the lines of its log.

    run: the run, as plain data.
    lines: lines of the log, in order.
    extensions: changes of the number of steps, in order.
    """

    folder: Path
    run: JsonObject
    lines: Sequence[LogLine]
    extensions: Sequence[JsonObject] = ()

    def of(self, kind: str) -> list[LogLine]:
        """Return the lines of a kind, in order."""
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def steps(self) -> int:
        """Number of steps that the run has in all."""
        return int(self.run["training"]["steps"])

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return max((line["step"] for line in self.lines), default=0)

    @property
    def is_finished(self) -> bool:
        """True if every step was taken."""
        return self.step >= self.steps

    @functools.cached_property
    def losses(self) -> list[float]:
        """Training loss of each step."""
        return [float(loss) for line in self.of("steps") for loss in line.get("loss", ())]

    @property
    def has_diverged(self) -> bool:
        """True if the last training loss is not finite."""
        return bool(self.losses) and not math.isfinite(self.losses[-1])

    @property
    def best(self) -> LogLine | None:
        """Evaluation with the lowest finite validation loss; None without one."""
        finite = [line for line in self.of("evaluation") if math.isfinite(line.get(METRIC, math.nan))]
        return min(finite, key=lambda line: line[METRIC], default=None)

    @property
    def seconds(self) -> float:
        """Seconds in training steps, without compilation and evaluations."""
        return sum(line.get("seconds", 0.0) for line in self.of("steps"))

    @property
    def goodput(self) -> str:
        """Share of the wall time of all launches in training steps, in words; empty for a log without it."""
        wall, lines = job_log.wall_seconds(self.lines), self.of("time")
        if not wall:
            return ""
        launches = len(self.of("launch"))
        text = f"{self.seconds / wall:.1%}: {duration(self.seconds)} of {duration(wall)} in training steps"
        if launches > 1:
            return f"{text}, in {launches} launches"
        spent = lines[-1] if lines else {}
        shares = {kind: spent[kind] / wall for kind in job_log.SPENT if kind != "steps" and kind in spent}
        spending = [f"{kind} {share:.0%}" for kind, share in shares.items() if share >= 0.005]
        return "; ".join([text, *filter(None, [", ".join(spending)])])

    @property
    def state(self) -> str:
        """Progress in a few words."""
        if self.has_diverged:
            return f"diverged: its loss is not finite after {self.step:,} of {count_of(self.steps, 'step')}"
        verb = "finished" if self.is_finished else "stopped or running"
        return f"{verb}: {self.step:,} of {count_of(self.steps, 'step')}"

    @property
    def scores(self) -> list[str]:
        """The best evaluation, the last one, the scores on test data, and what limits them, one text each."""
        texts, evaluations = [], self.of("evaluation")
        if (best := self.best) is not None:
            texts.append(f"best {_metrics(best, only=METRIC)} after step {best['step']:,}")
        if evaluations and evaluations[-1] is not best:
            texts.append(f"last {_metrics(evaluations[-1])} after step {evaluations[-1]['step']:,}")
        texts += [f"test data: {_metrics(line)}" for line in self.of("test")[-1:]]
        for change in self.extensions:
            if not change.get("is_exact"):
                lengths = (
                    f"from {change.get('before')} to {change.get('after')} steps after step {change.get('resumes')}"
                )
                texts.append(f"extended {lengths}, with other learning rates than an uninterrupted run has")
        return texts

    @property
    def next_commands(self) -> list[str]:
        """Commands that follow: use the weights, write the page again, and train on."""
        folder = shlex.quote(str(self.folder))
        generate = [f"flaxformer generate {folder}"] if self.of("sample") else []
        return [*generate, f"flaxformer report {folder}", *self._train_on()]

    def _train_on(self) -> Iterator[str]:
        """Yield the command of the last launch, if it is known; with twice the steps if all were taken.

        Then with --extend, without which a run whose learning rates depend on its length is refused.
        """
        words = command_words(next((line.get("command") or "" for line in reversed(self.of("launch"))), ""))
        if words[:2] != ["flaxformer", "train"] or self.has_diverged:
            return
        words = [word for word in words if word not in ("--restart", "--set")]
        if self.is_finished:
            words = [word for word in words if word != "--extend" and not word.startswith("training.steps=")]
            words += [f"training.steps={2 * self.steps}", "--extend"]
        yield shlex.join(words)


def read_job(folder: Path) -> JobResults:
    """Return the results of a training job.

    Raises:
      UserError: the folder holds none, or a file of it is damaged.
    """
    for name in (CONFIG, job_log.NAME):
        check_file(folder / name)
    try:
        config = read_document(folder / CONFIG)
        run = config["run"]
        steps = run["training"]["steps"]
    except (OSError, DamagedError, KeyError, TypeError) as error:
        raise UserError(f"{folder / CONFIG} holds no run ({error}); expected the output folder of 'train'") from None
    if not isinstance(steps, int) or steps < 1:
        raise UserError(f"{folder / CONFIG} is not as 'train' writes it: training.steps is {quote(steps)}")
    return JobResults(folder, run, job_log.read(folder / job_log.NAME), config.get("extensions", ()))


def write_job_report(folder: Path) -> JobResults:
    """Write the page and figures of a training job; return its results."""
    from flaxformer.report import figures, html  # here, since importing matplotlib takes a third of a second

    check_places(output_folder(folder), [CONFIG, job_log.NAME, REPORT], {"figures": 0})
    job = read_job(folder)
    document = job_document(job)
    drawn = figures.draw((part for part in document.parts if isinstance(part, Figure)), folder / "figures")
    write_printable(folder / REPORT, html.render(document, drawn))
    return job


def job_document(job: JobResults) -> StudyReport:
    """Return the report of a training job: state and scores, curves, samples, cost, config and further commands."""
    return StudyReport(
        name=job.folder.name,
        question=f"Training of {job.folder.name}",
        about="; ".join(_work(job)),
        answer=" ".join(f"{text[0].upper()}{text[1:]}." for text in (job.state, *job.scores)),
        verdict="refuted" if job.has_diverged else "",
        sections=[
            ReportSection("", [_curves(job)]),
            ReportSection("Evaluations", [_evaluations(job)]),
            ReportSection("Samples", [part for line in job.of("sample")[-MOST_SAMPLES:] for part in _sample(line)]),
            ReportSection("Cost", [Definitions(_cost(job))]),
            ReportSection("Data", data_card.of_job(job.run, next(iter(job.of("launch")[-1:]), {}))),
            ReportSection("Next", [Code("\n".join(job.next_commands))]),
            ReportSection("Config", [Folded("The run", Code(json.dumps(job.run, indent=1, ensure_ascii=False)))]),
        ],
    )


def _work(job: JobResults) -> Iterator[str]:
    for launch in job.of("launch")[-1:]:
        yield count_of(launch["parameters"], "parameter")
        yield f"{with_prefix(launch['flops_per_step'], 'FLOP')} per step, in matrix products"
        yield f"{launch['tokens_per_step']:,} tokens per step"
        yield f"{launch['devices']} × {launch['device']}"


def _cost(job: JobResults) -> list[tuple[str, str]]:
    """Time, throughput and the share of the device's peak."""
    steps, launches = len(job.losses), job.of("launch")
    if not steps or not launches or not job.seconds:
        return []
    launch, rate = launches[-1], steps / job.seconds
    rows = [
        ("training", f"{duration(job.seconds)} in {count_of(steps, 'step')}, without compilation and evaluations"),
        ("throughput", f"{rate * launch['tokens_per_step']:,.0f} tokens/s"),
        ("FLOP/s", f"{with_prefix(rate * launch['flops_per_step'], 'FLOP/s')} of the model's products"),
    ]
    if launch["peak"]:
        rows.append(("MFU", f"{rate * launch['flops_per_step'] / launch['peak']:.1%} of the published peak"))
    rows += [("goodput", job.goodput)] if job.goodput else []
    return [*rows, ("launches", str(len(launches)))]


def _metrics(line: LogLine, only: str | None = None) -> str:
    names = [name for name in line if name not in ("kind", "step") and only in (None, name)]
    names = [name for name in names if not name.endswith("_se")]  # standard errors
    return ", ".join(f"{name.replace('_', ' ')} {number(line[name])}" for name in names)


def _evaluations(job: JobResults) -> Table:
    lines = job.of("evaluation")
    names = list(dict.fromkeys(name for line in lines for name in line if name not in ("kind", "step")))
    header = ["step", *(name.replace("_", " ") for name in names)]
    shown = lines[-MOST_EVALUATIONS:]
    rows = [[f"{line['step']:,}", *(number(line[name]) if name in line else "–" for name in names)] for line in shown]
    return Table("Evaluations", header, rows, 0, on=PAGE)


def _sample(line: LogLine) -> list[Part]:
    return [Paragraph(f"After step {line['step']:,}:", PAGE), Code(f"{line['prompt']}{line['text']}", is_wrapped=True)]


def _curves(job: JobResults) -> Figure:
    """Training loss, averaged over intervals of steps, and validation loss."""

    def describe() -> str:
        best = "" if job.best is None else f"; lowest validation loss {number(job.best[METRIC])}"
        return f"Training loss from {number(job.losses[0])} to {number(job.losses[-1])}{best}."

    size = _interval(job)
    means = f"means over {size} steps each" if size > 1 else "of every step"
    caption = f"Training loss ({means}) and validation loss."
    return Figure("curves", lambda width: _draw(job, width), caption, describe, when=bool(job.losses))


def _interval(job: JobResults) -> int:
    return max(1, len(job.losses) // SMOOTHED)


def _draw(job: JobResults, width: float) -> "Drawing":
    from matplotlib.figure import Figure as Drawing

    from flaxformer.report.drawing import COLUMN, set_whole_ticks

    size, first = _interval(job), job.step - len(job.losses)
    means = [(first + end, sum(job.losses[end - size : end]) / size) for end in range(size, len(job.losses) + 1, size)]
    evaluations = [(line["step"], line[METRIC]) for line in job.of("evaluation") if METRIC in line]
    figure = Drawing(figsize=(width, 1.9 if width == COLUMN else 2.7), layout="constrained")
    ax = figure.subplots()
    ax.plot(*zip(*means, strict=True), color=GREY, label="training")
    if evaluations:
        ax.plot(*zip(*evaluations, strict=True), color=COLOURS[0], marker="o", ms=2.6, label="validation")
    ax.set_xlabel("step")
    set_whole_ticks(ax)
    ax.set_ylabel("loss (nats)")
    ax.legend(frameon=False)
    return figure
