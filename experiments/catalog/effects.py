"""Which mechanisms of the catalog lower the loss, at equal compute and each at its best learning rate?

Each family of arms (see arms.py) is two studies per task. The first trains every arm and the baseline at three
learning rates, a factor of 3 apart, on a tuning seed. The second trains each at its best rate on other seeds, and tests
one claim per arm on the test data, which chose nothing: that its score is better than the baseline's. All arms have the
compute of the baseline (FLOPs of matrix products, within 3 %); the number of steps is adjusted. Claims are corrected
within a family (Holm); the page has the false discovery rate over all families (Benjamini and Hochberg).

Tasks: next bytes of a text; multi-query recall, for what mixes tokens; span corruption by an encoder-decoder, the task
of Narang et al. 2021, for their rows and what is near them.

Pilots, of the baseline alone at seeds 100 to 102: on text, 0.01 is the best of 0.001, 0.003, 0.01 and 0.03. On recall,
in 480 steps of 16 sequences of 64 tokens, one run of four learns it with four layers, and none of sixteen with two
layers, 1 or 4 heads and other positions; in steps of 64 such sequences, all four at 0.003 and none of four at 0.01; in
steps of 64 sequences of 32 tokens, which the small form has, all six at 0.001 and 0.003, at 0.003 after 160 to 280
steps. Recall with other symbols, and in-context recall, were tried too, and not learned by all seeds. On spans, 0.003
and 0.01 are equal after 240 steps, at the loss of a unigram model, and 0.03 is worse; the small form has 480. The rates
of the other forms were not tried before.

Command: python experiments/catalog/effects.py --task text --form small
    then python experiments/catalog/page.py, which writes README.md from the results
After a change of a mechanism: --family FAMILY --arms ARM … --output DIR trains these arms and the baseline alone, at
    the same rates and seeds; page.py --collect DIR then puts them in place of the recorded ones.
Forms: quick (at most 15 minutes on 2 CPU cores), small (about 3 hours per task), gpu (on text 4.8 M weights, one H100
    or H200; a family in about a quarter of an hour, estimated). An interrupted command continues.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arms import EXPERTS, RATES, Changes, arms_by_family

import flaxformer
from flaxformer import (
    AdamW,
    Attention,
    Axis,
    Claim,
    Dense,
    EqualCost,
    Linear,
    ModelConfig,
    Points,
    Rotary,
    Run,
    SpanCorruption,
    StandardLibrary,
    Study,
    Task,
    Tokens,
    Training,
    replace_at,
    tuned_value,
)
from flaxformer.catalog import MultiQueryRecall

RATE = "optimizer.learning_rate"
MODEL = "model."
FACTORS = {"third": 1 / 3, "middle": 1.0, "triple": 3.0}
"""Tried learning rates, relative to the middle."""
BASELINE = "baseline"


@dataclasses.dataclass(frozen=True)
class Form:
    """Sizes of the studies.

    rate: middle of the tried learning rates; `RATES` has factors for the arms with another.
    families: families that are compared; all if empty.
    """

    layers: int
    d_model: int
    heads: int
    d_ff: int
    length: int
    batch_size: int
    steps: int
    rate: float
    seeds: Sequence[int]
    families: Sequence[str] = ()
    precision: str = "float32"


FORMS = {
    "quick": Form(4, 32, 4, 96, 32, 16, 120, 1e-2, range(5), ("attention", "norms")),
    "small": Form(4, 64, 4, 192, 64, 16, 240, 1e-2, range(5)),
    "gpu": Form(6, 256, 8, 768, 256, 32, 420, 3e-3, range(5), precision="bfloat16"),
}
TUNING_SEEDS = (1000,)
EVALUATIONS = 6
"""Evaluations per run; the numbers of steps are multiples of it."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Task on which arms are compared, by their loss.

    data: the task at the sizes of a form.
    families: families that are compared; all if empty.
    sizes: fields of a form that differ on this task, by the name of the form.
    has_encoder: whether models are encoder-decoders; an arm's encoder then has the changes of its decoder.
    without: arms that are not compared.
    """

    data: Callable[[Form], Task]
    families: Sequence[str] = ()
    sizes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    has_encoder: bool = False
    without: Sequence[str] = ()


TASKS: Mapping[str, Comparison] = {
    "text": Comparison(lambda form: StandardLibrary(length=form.length, batch_size=form.batch_size)),
    "recall": Comparison(
        lambda form: MultiQueryRecall(
            symbols=form.length, length=form.length, pairs=form.length // 4, power=1.0, batch_size=form.batch_size
        ),
        ("token mixers", "attention", "positions"),
        {
            "quick": {"layers": 2, "length": 16, "batch_size": 64, "families": ("positions",)},
            "small": {"layers": 2, "length": 32, "batch_size": 64, "steps": 480, "rate": 3e-3},
            "gpu": {"layers": 4, "length": 64, "batch_size": 256, "steps": 960, "rate": 1e-3},
        },
        without=("3 KDA 1 attention", "3 gated delta 1 attention"),  # they have four layers at least
    ),
    "spans": Comparison(
        lambda form: SpanCorruption(text=StandardLibrary(length=form.length), batch_size=form.batch_size),
        ("feed-forward", "norms", "residuals and depth", "embeddings and heads", "initialisation"),
        {"quick": {"families": ("norms",)}, "small": {"steps": 480}},
        has_encoder=True,
        without=("bigram embedding", "Engram"),  # they read the tokens before, and an encoder has those after too
    ),
}
"""Comparisons by name."""


def form_of(task: str, name: str) -> Form:
    """Return the sizes of a form on a task."""
    return dataclasses.replace(FORMS[name], **TASKS[task].sizes.get(name, {}))


def families(task: str, form: Form) -> list[str]:
    """Return the families that are compared on a task in a form."""
    chosen = TASKS[task].families, form.families
    return [family for family in arms_by_family() if all(not names or family in names for names in chosen)]


def baseline_run(task: str, form: Form) -> Run:
    """Return the run that all arms vary."""
    return Run(
        model=_model(task, form, {}),
        task=TASKS[task].data(form),
        optimizer=AdamW(learning_rate=form.rate, warmup_steps=form.steps / 10, weight_decay=0.1, decay=Linear()),
        training=Training(steps=form.steps, evaluate_every=form.steps // EVALUATIONS, precision=form.precision),
    )


def arm_changes(task: str, form: Form, changes: Changes) -> Changes:
    """Return the changes of an arm on a task: with an encoder, those of the decoder make the whole model."""
    if not TASKS[task].has_encoder:
        return changes
    of_model = {path.removeprefix(MODEL): value for path, value in changes.items() if path.startswith(MODEL)}
    other = {path: value for path, value in changes.items() if not path.startswith(MODEL)}
    return {"model": _model(task, form, of_model)} | other


def _model(task: str, form: Form, changes: Changes) -> ModelConfig:
    """The model with changes of its decoder, which its encoder, if there is one, has too."""
    decoder = ModelConfig(
        vocabulary=TASKS[task].data(form).vocabulary,
        layers=form.layers,
        d_model=form.d_model,
        attention=Attention(heads=form.heads),
        feed_forward=Dense(d_ff=form.d_ff),
        positions=Rotary(),
    )
    decoder = replace_at(decoder, changes)
    if not TASKS[task].has_encoder:
        return decoder
    inputs = Tokens(shared=True) if type(decoder.inputs) is Tokens else decoder.inputs
    elsewhere = "head/", "embedding/"  # weights that the encoder does not have, or shares
    initial = tuple(rule for rule in decoder.initial if not any(path.startswith(elsewhere) for path in rule.weights))
    return decoder.with_encoder(inputs=inputs, initial=initial)


def arms_of(task: str, form: Form, family: str, only: Sequence[str] = ()) -> dict[str, Changes]:
    """Return the arms of a family on a task, or `only` some of them, by their labels, the baseline first."""
    arms: dict[str, Changes] = {BASELINE: {}} | arms_by_family()[family]
    left_out = {*TASKS[task].without, *(set(arms) - {BASELINE, *only} if only else ())}
    return {label: arm_changes(task, form, changes) for label, changes in arms.items() if label not in left_out}


def middle_rate(form: Form, label: str) -> float:
    """Return the middle of the learning rates that are tried for an arm."""
    return form.rate * RATES.get(label, 1.0)


def rate_studies(task: str, form_name: str, family: str, only: Sequence[str] = ()) -> dict[float, Study]:
    """Return the tuning studies of a family by the middle of their rates; the baseline is in that of its own rate."""
    form = form_of(task, form_name)
    by_rate: dict[float, dict[str, Changes]] = {}
    for label, changes in arms_of(task, form, family, only).items():
        by_rate.setdefault(middle_rate(form, label), {})[label] = changes
    return {
        rate: Study(
            name=folder_name(task, form_name, family, f"rates-{rate:.3g}"),
            question=f"At which learning rate does each arm of the family '{family}' train best?",
            baseline=baseline_run(task, form),
            axes=[
                Points("arm", arms),
                Axis(RATE, {name: rate * factor for name, factor in FACTORS.items()}, name="rate"),
            ],
            seeds=TUNING_SEEDS,
            compare=_rule(family),
            test=False,
        )
        for rate, arms in by_rate.items()
    }


def effect_study(task: str, form_name: str, family: str, rates: Mapping[str, float]) -> Study:
    """Return the study that compares each arm that has a rate with the baseline, each at its rate."""
    form = form_of(task, form_name)
    arms, baseline = arms_of(task, form, family, list(rates)), baseline_run(task, form)
    return Study(
        name=folder_name(task, form_name, family, "effects"),
        question=f"Which arms of the family '{family}' are better than the baseline on the task '{task}'?",
        baseline=baseline.replace(optimizer=baseline.optimizer.replace(learning_rate=rates[BASELINE])),
        axes=[Points("arm", {label: {**changes, RATE: rates[label]} for label, changes in arms.items()})],
        seeds=form.seeds,
        metric="test_loss",
        claims=[
            Claim(f"{label}: a lower loss than the baseline", lower={"arm": label}, than={"arm": BASELINE})
            for label in arms
            if label != BASELINE
        ],
        compare=_rule(family),
        caveats=[
            f"One size, {form.steps} steps of {form.batch_size} sequences for the baseline.",
            "Each learning rate is the best of three, a factor of 3 apart, on one seed; nothing else is tuned.",
        ],
    )


def best_rate(folder: Path, form: Form, label: str) -> float:
    """Return the best learning rate of an arm in a finished tuning study; the smallest if it has no finite loss."""
    tried = [arm for arm in flaxformer.results(folder).arms if arm.labels["arm"] == label]
    if all(None in arm.scores for arm in tried):
        return min(FACTORS.values()) * middle_rate(form, label)
    return float(tuned_value(folder, RATE, seeds=form.seeds, where={"arm": label}))


def run_family(task: str, form_name: str, family: str, folder: Path, only: Sequence[str] = ()) -> None:
    """Run the studies of a family, or of `only` some of its arms, that are not finished."""
    form, tuning = form_of(task, form_name), rate_studies(task, form_name, family, only)
    for study in tuning.values():
        flaxformer.run(study, folder / study.name)
    folders = {rate: folder / study.name for rate, study in tuning.items()}
    labels = arms_of(task, form, family, only)
    rates = {label: best_rate(folders[middle_rate(form, label)], form, label) for label in labels}
    study = effect_study(task, form_name, family, rates)
    flaxformer.run(study, folder / study.name)


def _rule(family: str) -> EqualCost | None:
    """The comparison of a family: at equal compute; as they are for experts, most of which compute for no token."""
    return None if family == EXPERTS else EqualCost("compute", tolerance=0.03)


def folder_name(task: str, form: str, family: str, part: str) -> str:
    """Return the name of a study and of its folder."""
    return f"{task}-{form}-{family.replace(' ', '_')}-{part}"


def main(arguments: Sequence[str]) -> None:
    """Run the studies of a task and a form, family by family."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", choices=TASKS, default="text")
    parser.add_argument("--form", choices=FORMS, default="small")
    parser.add_argument("--family", choices=list(arms_by_family()), help="one family; by default all")
    parser.add_argument("--arms", nargs="+", default=(), help="some arms of the family; by default all")
    parser.add_argument("--output", type=Path, default=Path("runs/catalog"), help="folder of results")
    options = parser.parse_args(arguments)
    known = arms_by_family().get(options.family, {})
    if unknown := [label for label in options.arms if label not in known]:
        parser.error(f"--arms has {unknown[0]!r}; expected arms of --family: {', '.join(known)}")
    for family in [options.family] if options.family else families(options.task, form_of(options.task, options.form)):
        run_family(options.task, options.form, family, options.output, options.arms)


if __name__ == "__main__":
    main(sys.argv[1:])
