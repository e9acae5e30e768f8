"""A study that runs in seconds: 12 runs of 6 steps in 2 compiled programs, with a claim of every form."""

from flaxformer.config import POST, PRE, ModelConfig
from flaxformer.study import Axis, Claim, Study
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training

BASELINE = Run(
    model=ModelConfig(vocabulary=6, layers=1, d_model=8, heads=2, d_ff=11),
    task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
    optimizer=AdamW(learning_rate=1e-3),
    training=Training(steps=6, evaluate_every=3),
)
AXES = (
    Axis("model.norm", {"pre": PRE, "post": POST}),
    Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate"),
)
CLAIMS = (
    Claim("high is better than low", lower={"rate": "high"}, than={"rate": "low"}),
    Claim(
        "high helps pre more than post",
        lower={"rate": "high"},
        than={"rate": "low"},
        where={"norm": "pre"},
        more_than_where={"norm": "post"},
    ),
    Claim("pre and post are alike", equal={"norm": "pre"}, to={"norm": "post"}, within=0.5),
)


def tiny(**changes) -> Study:
    """The study, with other fields where the caller says so."""
    fields = {
        "name": "tiny",
        "question": "Does it run?",
        "baseline": BASELINE,
        "axes": AXES,
        "seeds": range(3),
        "claims": CLAIMS,
        "caveats": ("It is tiny.",),
    }
    return Study(**(fields | changes))


FILE = '''"""The tiny study as a file, for the command line."""

from flaxformer.config import POST, PRE, ModelConfig
from flaxformer.study import Axis, Claim, Study
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training

study = Study(
    name="tiny",
    question="Does it run?",
    baseline=Run(
        model=ModelConfig(vocabulary=6, layers=1, d_model=8, heads=2, d_ff=11),
        task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
        optimizer=AdamW(learning_rate=1e-3),
        training=Training(steps=6, evaluate_every=3),
    ),
    axes=[
        Axis("model.norm", {"pre": PRE, "post": POST}),
        Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate"),
    ],
    seeds=range(3),
    claims=[
        Claim("high is better than low", lower={"rate": "high"}, than={"rate": "low"}),
        Claim(
            "high helps pre more than post",
            lower={"rate": "high"}, than={"rate": "low"}, where={"norm": "pre"}, more_than_where={"norm": "post"},
        ),
        Claim("pre and post are alike", equal={"norm": "pre"}, to={"norm": "post"}, within=0.5),
    ],
    caveats=["It is tiny."],
)
'''
