"""How large are the dot products of random vectors?

The texts divide the logits of attention by √d because q·k grows with d. For independent elements of mean 0 and variance
σ², one text gives the variance of q·k as d·σ². The product of two such elements has variance σ²·σ², so the sum over d
of them has variance d·σ⁴; the two agree only at σ = 1. Both forms are tested at σ = ½ and 2, as the ratio of the
measured to the claimed variance. The growth with d is tested as the slope of log std against log d.
"""

import numpy as np

from flaxformer import Claim, Probe
from flaxformer.claims import Case

WIDTHS = [16, 32, 64, 128, 256, 512, 1024]
PAIRS = 4096


def dot_products(rng: np.random.Generator, width: int, sigma: float = 1.0) -> np.ndarray:
    """Return q·k for PAIRS independent pairs."""
    query, key = rng.normal(0, sigma, (2, PAIRS, width))
    return (query * key).sum(-1)


def measure(seed: int) -> dict[str, float]:
    """Return the growth with d, and variances relative to the claimed ones."""
    rng = np.random.default_rng(seed)
    sizes = [dot_products(rng, width).std() for width in WIDTHS]
    numbers = {"slope of log std against log d": float(np.polyfit(np.log(WIDTHS), np.log(sizes), 1)[0])}
    for sigma in (0.5, 1.0, 2.0):
        variance = dot_products(rng, 64, sigma).var()
        numbers[f"variance / (d·σ⁴), σ = {sigma:g}"] = variance / (64 * sigma**4)
        numbers[f"variance / (d·σ²), σ = {sigma:g}"] = variance / (64 * sigma**2)
    return numbers


case = Case(
    claim="Dot products of random vectors have variance d·σ², so their size grows as √d.",
    source="Transformers like a physicist, on the scale of attention; Vaswani et al. 2017, footnote 4",
    evidence=[
        Probe(
            name="variance",
            question="What is the variance of the dot product of two random vectors?",
            measure=measure,
            seeds=range(20, 30),
            claims=[
                Claim(
                    "as written, “will have a variance of dσ²”, at σ = 2",
                    equal={"quantity": "variance / (d·σ²), σ = 2"},
                    to=1,
                    within=0.1,
                ),
                Claim(
                    "corrected, variance d·σ⁴ at σ = 2",
                    equal={"quantity": "variance / (d·σ⁴), σ = 2"},
                    to=1,
                    within=0.1,
                ),
                Claim(
                    "corrected, variance d·σ⁴ at σ = ½",
                    equal={"quantity": "variance / (d·σ⁴), σ = 0.5"},
                    to=1,
                    within=0.1,
                ),
                Claim(
                    "as written, “grows roughly as √d”: slope ½ on log axes",
                    equal={"quantity": "slope of log std against log d"},
                    to=0.5,
                    within=0.02,
                ),
            ],
            caveats=["Elements are independent and normal; trained queries and keys are neither."],
        )
    ],
)
