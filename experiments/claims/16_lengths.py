"""Which positions are best, within the trained length and beyond it?

The texts offer learned and fixed positions as alternatives. Vaswani et al. 2017 (table 3, row E) found nearly identical
results, and hoped that sinusoids would extrapolate to longer sequences. Both are tested on the text of the standard
library, trained on windows of T = 32 bytes:

- nearly identical: within T, learned and sinusoidal positions differ by less than 0.02 nats. The condition is the
  initial size of learned ones: as large as the embeddings (std 1), or small (0.02); the same program with another
  number.
- beyond T: windows of 2T. The number is the loss on the second half of a window read after its first half, minus the
  loss on that half read alone (a window of T, as trained): the cost of reading more. A scheme that extrapolates has a
  cost of 0, or below, because context helps; 0.02 nats is the margin. The hope is that sinusoids extrapolate. With
  the condition that positions act by distance inside attention (ALiBi, Press et al. 2022; rotary; buckets, the last
  of which holds every distance from 24 on), they cost less than sinusoids, and ALiBi nothing.
- a learned table has no rows beyond max_length, where it raises an error; rows that exist but were never trained
  cost. So should an index that is concatenated to the token ("What Happens in A Transformer Layer" objects that it
  has no bound); that one was not piloted.

Pilot (seeds 100 to 102), loss at T and cost of 2T, nats: sinusoidal 2.464, 0.32; learned 2.441, 0.058, and from std 1
2.564, 0.26; none 2.445, 0.050; rotary 2.386, 0.17; ALiBi 2.390, −0.007; buckets 2.426, 0.044. With two heads in place
of four, the smaller slope of ALiBi cost it 0.016. The cost near 0.05 without positions is that of twice as many keys.

Command: flaxformer claims 16
Cost: 64 runs in 7 programs and a probe, about 230 CPU-seconds; quick, the probe alone: 1.
Expected: the equality within T is near its margin (learned ones are better by 0.02); sinusoids do not extrapolate.
"""

import jax
import jax.numpy as jnp

from flaxformer import (
    AdamW,
    Alibi,
    Attention,
    Axis,
    Claim,
    ConcatenatedIndex,
    LearnedPositions,
    ModelConfig,
    NoPositions,
    Probe,
    RelativeBuckets,
    Rotary,
    Run,
    Sinusoidal,
    StandardLibrary,
    Study,
    Training,
    model,
)
from flaxformer.claims import Case
from flaxformer.nn.losses import cross_entropy

LENGTH = 32
SCHEMES = {
    "sinusoidal": Sinusoidal(),
    "learned": LearnedPositions(max_length=2 * LENGTH),  # of which half are never trained
    "learned of std 1": LearnedPositions(max_length=2 * LENGTH, std=1.0),
    "none": NoPositions(),
    "rotary": Rotary(),
    "alibi": Alibi(),
    "buckets": RelativeBuckets(buckets=16, max_distance=24),
    "concatenated": ConcatenatedIndex(scale=1 / LENGTH),
}


def measure(params, run: Run) -> dict:
    """Return the cost of reading windows of twice the trained length."""
    length = run.task.length
    long = run.task.replace(length=2 * length).load().evaluation()

    def loss(batch) -> jax.Array:
        """On the last `length` targets."""
        logits = model.apply(params, run.model, batch.inputs)
        total, scored = cross_entropy(logits[:, -length:], batch.targets[:, -length:])
        return total / scored

    alone = jax.tree.map(lambda x: x[..., length:], long)
    return {"cost": jax.lax.map(loss, long).mean() - jax.lax.map(loss, alone).mean()}


def costs(rows) -> dict[str, float]:
    """Return the cost of each scheme."""
    return {cost(scheme)["quantity"]: rows[f"positions={scheme}"]["cost"] for scheme in SCHEMES}


def cost(scheme: str) -> dict[str, str]:
    """Return the label of a cost."""
    return {"quantity": f"cost of 2T: {scheme}"}


def refused(seed: int) -> dict[str, float]:
    """Return which schemes raise an error for T + 1 tokens, the learned one with a table of T."""
    config = ModelConfig(layers=1, d_model=16, attention=Attention(heads=2))
    tokens = jnp.zeros((1, LENGTH + 1), int)
    numbers = {}
    for name, scheme in (SCHEMES | {"learned": LearnedPositions(max_length=LENGTH)}).items():
        own = config.replace(positions=scheme)
        try:
            jax.eval_shape(lambda own=own: model.apply(model.init(jax.random.key(seed), own), own, tokens))
            numbers[name] = 0.0
        except ValueError:
            numbers[name] = 1.0
    return numbers


def study(schemes: dict, steps: int = 300, seeds: range = range(20, 28)) -> Study:
    """Return a study of schemes, trained at T, evaluated at T and 2T."""
    by_distance = "with the condition that positions act by distance: {} costs less at 2T than sinusoids do"
    return Study(
        name="lengths",
        question="What does a scheme of positions cost within the trained length, and beyond it?",
        baseline=Run(
            model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=4), positions=Sinusoidal()),
            task=StandardLibrary(length=LENGTH, batch_size=16),
            optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
            training=Training(steps=steps),
        ),
        axes=[Axis("model.positions", schemes)],
        seeds=seeds,
        measure=measure,
        derive=costs,
        claims=[
            Claim(
                "Vaswani et al., “nearly identical results”: learned and sinusoidal ones are within 0.02 nats at T",
                equal={"positions": "learned"},
                to={"positions": "sinusoidal"},
                within=0.02,
            ),
            Claim(
                "learned positions that start small are better than sinusoids within T",
                lower={"positions": "learned"},
                than={"positions": "sinusoidal"},
            ),
            Claim(
                "with the condition that they start small: at std 1, learned positions are worse",
                higher={"positions": "learned of std 1"},
                than={"positions": "learned"},
                by=0.02,
            ),
            Claim(
                "Vaswani et al., “may allow the model to extrapolate”: sinusoids cost below 0.02 nats at 2T",
                lower=cost("sinusoidal"),
                than=0.02,
            ),
            Claim("rows never trained cost at 2T", higher=cost("learned"), than=0.02),
            Claim(
                "a reading of “may lead to unbounded inputs”: so does a concatenated index",
                higher=cost("concatenated"),
                than=0.02,
            ),
            *(
                Claim(by_distance.format(scheme), lower=cost(scheme), than=cost("sinusoidal"), by=0.05)
                for scheme in ("alibi", "buckets", "rotary")
            ),
            Claim("ALiBi costs below 0.02 nats at 2T", lower=cost("alibi"), than=0.02),
            Claim(
                "a causal mask alone costs less at 2T than sinusoids",
                lower=cost("none"),
                than=cost("sinusoidal"),
                by=0.05,
            ),
        ],
        caveats=[
            "Windows of 32 bytes and 300 steps of a small model, whose use of context is modest.",
            "Twice the trained length; further out, schemes that hold here may fail.",
        ],
    )


REFUSED = Probe(
    name="refused",
    question="What becomes of a sequence that is longer than a learned table?",
    measure=refused,
    seeds=[0],
    exact=True,
    claims=[
        Claim("a table of T refuses T + 1 tokens", equal={"quantity": "learned"}, to=1, within=1e-9),
        Claim("sinusoids take any length", equal={"quantity": "sinusoidal"}, to=0, within=1e-9),
    ],
)
case = Case(
    claim="Learned and sinusoidal positions are alike, but for lengths that were not trained.",
    source="Self-Attention and Transformers, position representations; Transformer (walk-through), positional "
    "encoding; What Happens in A Transformer Layer, second appendix; Vaswani et al. 2017, section 3.5 and table 3",
    evidence=[REFUSED, study(SCHEMES)],
    quick=[REFUSED],
)
