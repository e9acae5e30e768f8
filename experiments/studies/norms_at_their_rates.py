"""Which norm placement is better when each is trained at its own best learning rate?

The rates are those that rates_of_norms.py chose, read from its folder; its seeds are not among those reported here,
because the best of many rates looks better on the seeds that chose it than on others.
Command: flaxformer run experiments/studies/norms_at_their_rates.py
Cost: 10 runs in 2 compiled programs, seconds on 2 CPU cores.
"""

from flaxformer.config import POST, PRE, ModelConfig
from flaxformer.study import Claim, Points, Study, tuned
from flaxformer.tasks import StandardLibrary
from flaxformer.training import AdamW, Run, Training

SEEDS = range(5)
RATE = "optimizer.learning_rate"
BEST = {norm: tuned("runs/rates_of_norms", RATE, seeds=SEEDS, where={"norm": norm}) for norm in ("pre", "post")}

study = Study(
    name="norms_at_their_rates",
    question="Which norm placement is better when each is trained at its own best learning rate?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, heads=2, d_ff=64),
        task=StandardLibrary(length=32, batch_size=16),
        optimizer=AdamW(learning_rate=BEST["pre"], decay="linear"),
        training=Training(steps=200, evaluate_every=50),
    ),
    axes=[
        Points(
            "norm", {"pre": {"model.norm": PRE, RATE: BEST["pre"]}, "post": {"model.norm": POST, RATE: BEST["post"]}}
        )
    ],
    seeds=SEEDS,
    claims=[
        Claim(
            "at 2 layers, each at its best rate, pre- and post-norm do not differ by more than 0.05 nats",
            equal={"norm": "pre"},
            to={"norm": "post"},
            within=0.05,
        )
    ],
    caveats=["One small model and 200 steps; each rate is the best of 16 by two other seeds."],
)
