"""How does the share of one domain in training change the loss on each of two domains, at equal steps?"""

import ast
import functools
import hashlib
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flaxformer.config import Attention, Dense, ModelConfig, Rotary
from flaxformer.data.corpus import MODULES, PACKAGES, Corpus, tenth
from flaxformer.study import Axis, Study
from flaxformer.tasks import Domain, Mixture, Stage
from flaxformer.tasks.text import TextTask
from flaxformer.training import AdamW, Cosine, Run, Training

STEPS, LATE = 200, 160
LENGTH = 64


class Docstrings(TextTask):
    """The docstrings of the modules, classes and functions of the standard library."""

    def corpus(self) -> Corpus:
        return split_library()[0]


class Statements(TextTask):
    """The code of the standard library without docstrings and comments, in one layout."""

    def corpus(self) -> Corpus:
        return split_library()[1]


@functools.cache
def split_library() -> tuple[Corpus, Corpus]:
    """Return the docstrings and the other code of every file; one file in ten is for evaluation in both."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [root / f"{name}.py" for name in MODULES]
    files += [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    sides: list[dict[bool, list[str]]] = [{True: [], False: []}, {True: [], False: []}]
    for path in files:
        name = path.relative_to(root)
        if not path.is_file() or {"test", "tests"} & set(name.parts):
            continue
        is_held_out = tenth(name.as_posix().encode()) == 0
        for texts, text in zip(sides, separate(path.read_text(encoding="utf-8", errors="replace")), strict=True):
            texts[is_held_out].append(text)
    return make_corpus(sides[0]), make_corpus(sides[1])


def separate(source: str) -> tuple[str, str]:
    """Return the docstrings of a file, and its code without them."""
    tree, found = ast.parse(source), []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text is not None:
            found.append(text)
            node.body = node.body[1:] or [ast.Pass()]
    return "\n\n".join(found), ast.unparse(tree)


def make_corpus(texts: Mapping[bool, list[str]]) -> Corpus:
    """Return the training files and the held-out files as bytes."""
    held_out, train = ("\n\n".join(texts[side]).encode() for side in (True, False))
    return Corpus(
        train=np.frombuffer(train, np.uint8),
        validation=np.frombuffer(held_out, np.uint8),
        files=len(texts[True]) + len(texts[False]),
        digest=hashlib.sha256(train + b"\0" + held_out).hexdigest(),
    )


def mixture(share: float, late: float | None = None) -> Mixture:
    """Return the task with a share of docstrings in the first 160 steps, and another in the last 40."""
    last = share if late is None else late
    return Mixture(
        domains=(
            Domain(name="prose", task=Docstrings(length=LENGTH), weight=share),
            Domain(name="code", task=Statements(length=LENGTH), weight=1 - share),
        ),
        stages=(Stage(start=LATE, weights=(last, 1 - last)),),
        batch_size=16,
        evaluation_batches=16,
    )


study = Study(
    name="mixture_weights",
    question="How does the share of docstrings in training change the loss on docstrings and on code, at equal steps?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=256,
            layers=2,
            d_model=64,
            attention=Attention(heads=4, bias=False),
            feed_forward=Dense(d_ff=256),
            positions=Rotary(),
        ),
        task=mixture(0.5),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=20, decay=Cosine()),
        training=Training(steps=STEPS, evaluate_every=40),
    ),
    axes=[
        Axis(
            "task",
            {
                "0 %": mixture(0.0),
                "10 %": mixture(0.1),
                "50 %": mixture(0.5),
                "100 %": mixture(1.0),
                "late 10 %": mixture(0.0, 0.5),
            },
            name="prose",
        )
    ],
    seeds=[100],
    metric="prose_loss",
)
