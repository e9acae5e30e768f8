"""Folders of a study over sizes whose losses follow known laws; nothing is trained."""

import functools
import itertools

import numpy as np
from study.tiny import BASELINE, NORM, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.study import Points, Scaling
from flaxformer.study.scale import run_scale

STEPS = (4, 16, 64, 256, 1024, 4096)
SIZES = Points("size", {f"s{i}": {"training.steps": n, "training.evaluate_every": n} for i, n in enumerate(STEPS)})
LAWS = {"pre": (1.0, 2.0, 0.4), "post": (1.2, 2.6, 0.4)}
"""L∞, the loss above it at the smallest size, and α."""
SEEDS = 8


def law(laws, ratio):
    """The loss of a law at C / C₁."""
    limit, amplitude, exponent = laws
    return limit + amplitude * ratio**-exponent


def sized(**changes):
    """The study: two norms at six sizes, the largest held out, against the tokens."""
    scaling = Scaling("size", against="tokens", held_out=("s5",))
    fields = {"axes": (NORM, SIZES), "claims": (), "seeds": range(SEEDS), "scaling": scaling, "baseline": BASELINE}
    return tiny(**(fields | changes))


def scores(laws=None, noise=0.01, shared=0.02, seed=0):
    """A loss per trial: the law, an offset per seed that the arms share, and noise."""
    random, found = np.random.default_rng(seed), {}
    offsets = shared * random.standard_normal(100)

    def loss(trial):
        if trial.name not in found:
            own = (laws or LAWS)[trial.arm.labels.get("norm", "pre")]
            ratio = trial.run.training.steps / STEPS[0]
            found[trial.name] = law(own, ratio) + offsets[trial.seed] + noise * random.standard_normal()
        return found[trial.name]

    return loss


def scaled(tmp_path, loss=None, **changes):
    """The analysis of a filled folder."""
    return analyse(fill(tmp_path, sized(**changes), loss or scores()))


PRE = {"norm": "pre"}


def grid_study(widths=(8, 24, 64), steps=(4, 32, 256), pairs=None, axes=(), **changes):
    """Changes of `sized` for a grid of widths and steps, with a size beyond both that is held out."""
    pairs = pairs or tuple(itertools.product(widths, steps))
    far = tuple(2 * max(own) if len(set(own)) > 1 else own[0] for own in zip(*pairs, strict=True))
    levels = {f"{width} {n}": (width, n) for width, n in pairs} | {"far": far}
    points = {
        label: {"model.d_model": width, "training.steps": n, "training.evaluate_every": n}
        for label, (width, n) in levels.items()
    }
    scaling = Scaling("size", against="tokens", held_out=("far",))
    return {"axes": (*axes, Points("size", points)), "scaling": scaling} | changes


def joint_scores(limit=1.0, above=(2.0, 1.0), noise=0.003, shared=0.02):
    """A loss per trial: a joint law with the exponents 0.5 and 0.3, an offset per seed that arms share, and noise.

    `above` has the parts of N and D at the smallest size.
    """
    random = np.random.default_rng(0)
    offsets = shared * random.standard_normal(100)
    smallest = BASELINE.replace(training=BASELINE.training.replace(steps=4, evaluate_every=4))

    @functools.cache
    def ratios(run):
        own, least = run_scale(run), run_scale(smallest)
        return [own[name] / least[name] for name in ("parameters", "tokens")]

    def loss(trial):
        n, d = ratios(trial.run.replace(seed=0))
        mean = limit + above[0] * n**-0.5 + above[1] * d**-0.3
        return mean + offsets[trial.seed] + noise * random.standard_normal()

    return loss
