"""Which heads make induction work, when do they appear, and what happens to the loss without them?"""

import jax.numpy as jnp

from flaxformer.config import Attention, LearnedPositions, ModelConfig
from flaxformer.interpret import head_importance, head_scores, lens_scores, named, prefix_matching, previous_token
from flaxformer.study import Axis, Study
from flaxformer.tasks import Induction
from flaxformer.training import AdamW, Run, Training

FIRST, SECOND = "blocks/0/attention", "blocks/1/attention"


def measure(params, run):
    batches = run.task.load().evaluation()
    tokens = batches.inputs.reshape(-1, batches.inputs.shape[-1])
    is_last = jnp.arange(tokens.shape[-1])[None] == tokens.shape[-1] - 1
    matching = head_scores(params, run.model, tokens, lambda a, t: prefix_matching(a, t, is_last))
    previous = head_scores(params, run.model, tokens, previous_token)
    importance = head_importance(params, run, batches)
    found = named("prefix_matching", matching) | named("previous_token", previous)
    return found | named("head_importance", importance) | named("logit_lens", lens_scores(params, run, batches))


study = Study(
    name="induction_heads",
    question="Which heads make induction work, when do they appear, and what happens to the loss without them?",
    baseline=Run(
        model=ModelConfig(
            vocabulary=16,
            layers=2,
            d_model=32,
            attention=Attention(heads=4),
            feed_forward=None,
            positions=LearnedPositions(max_length=16),
        ),
        task=Induction(symbols=16, length=16, batch_size=64, evaluation_batches=8),
        optimizer=AdamW(learning_rate=5e-3, warmup_steps=50),
        training=Training(steps=2000, evaluate_every=100),
    ),
    axes=[Axis("optimizer.learning_rate", {"0.005": 5e-3, "0.01": 1e-2}, name="rate")],
    seeds=range(100, 103),
    measure=measure,
    caveats=["x"],
)
