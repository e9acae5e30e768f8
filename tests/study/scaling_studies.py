"""Folders of a study over sizes whose losses follow known laws; nothing is trained."""

import numpy as np
from study.tiny import BASELINE, NORM, fill, tiny

from flaxformer.study import Points, Scaling
from flaxformer.study.analysis import analyse

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
