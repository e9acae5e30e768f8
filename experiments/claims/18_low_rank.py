"""What is of low rank in a head?

The notes explain the price of many heads by the low rank of what each applies: queries and keys of d/k numbers make
W_Q W_Kᵀ, and with it the logits X W_Q W_Kᵀ Xᵀ of any number of tokens, matrices of rank d/k; one head has full rank d.
Counted here as singular values above rounding, in float64, of a layer of width 48 over 64 tokens.

The condition: logits as the texts have them. Rotary positions keep the rank, since they turn queries and keys one by
one. A bias on the distance adds to the logits and removes the bound. So does the softmax: the pattern itself, the
exponentials of the logits divided row by row, is of full rank however narrow the head.

Cost: no training, about 6 s on one CPU core; the quick form is the same.
"""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import Alibi, Attention, Claim, Embeddings, ModelConfig, NoHead, NoPositions, Probe, Rotary
from flaxformer.claims import Case
from flaxformer.model import init

WIDTH, LENGTH = 48, 64
LAYER = ModelConfig(inputs=Embeddings(), head=NoHead(), layers=1, d_model=WIDTH, feed_forward=None)
SCHEMES = {"no positions": NoPositions(), "rotary": Rotary(), "a bias on the distance": Alibi()}


def logits(query: np.ndarray, key: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Return Q Kᵀ / √(d/k) + bias, with the position scheme of a config, for the first head."""
    places = jnp.arange(LENGTH)
    rotate = config.positions.rotate
    rotated = [np.asarray(rotate(jnp.asarray(x)[:, None], places), float)[:, 0] for x in (query, key)]
    bias = config.positions.bias(None, places, places, config.attention.heads, bidirectional=True)
    plain = rotated[0] @ rotated[1].T / np.sqrt(query.shape[-1])
    return plain if bias is None else plain + np.asarray(bias[0], float)


def matrices(heads: int, seed: int) -> dict[str, np.ndarray]:
    """Return the matrices that the first of several heads applies to random tokens."""
    config = LAYER.replace(attention=Attention(heads=heads))
    attention = init(jax.random.key(seed), config).blocks[0].attention
    query, key = (np.asarray(weight[:, 0], float) for weight in (attention.query, attention.key))
    x = np.random.default_rng(seed).normal(size=(LENGTH, WIDTH))
    found = {"W_Q W_Kᵀ": query @ key.T}
    for name, scheme in SCHEMES.items():
        found[f"logits, {name}"] = logits(x @ query, x @ key, config.replace(positions=scheme))
    exponentials = np.exp(found["logits, no positions"])
    return found | {"pattern": exponentials / exponentials.sum(-1, keepdims=True)}


def measure(seed: int) -> dict[str, float]:
    """Return the rank of every matrix with 1, 2, 4 and 8 heads, of width 48, 24, 12 and 6."""
    return {
        f"{name}, {heads} heads" if heads > 1 else f"{name}, one head": np.linalg.matrix_rank(matrix)
        for heads in (1, 2, 4, 8)
        for name, matrix in matrices(heads, seed).items()
    }


def has_rank(text: str, quantity: str, rank: int) -> Claim:
    """Return a claim that a quantity is equal to an integer rank."""
    return Claim(text, equal={"quantity": quantity}, to=rank, within=0.5)


case = Case(
    claim="The product of a head's queries and keys is of low rank: d/k for k heads.",
    source="Self-Attention and Transformers, multi-head self-attention",
    evidence=[
        Probe(
            name="ranks",
            question="What is the rank of what one head of a layer of width 48 applies to 64 tokens?",
            measure=measure,
            seeds=[0],
            exact=True,
            claims=[
                has_rank("one head: W_Q W_Kᵀ has the full rank d = 48", "W_Q W_Kᵀ, one head", 48),
                *(
                    has_rank(f"{heads} heads: W_Q W_Kᵀ has rank d/k = {48 // heads}", f"W_Q W_Kᵀ, {heads} heads", r)
                    for heads, r in ((2, 24), (4, 12), (8, 6))
                ),
                has_rank("8 heads: so have the logits", "logits, no positions, 8 heads", 6),
                has_rank("8 heads: and with rotary positions", "logits, rotary, 8 heads", 6),
                Claim(
                    "8 heads: with a bias on the distance, the logits' rank is higher",
                    higher={"quantity": "logits, a bias on the distance, 8 heads"},
                    than=6,
                ),
                has_rank("8 heads: after the softmax the pattern has full rank", "pattern, 8 heads", LENGTH),
            ],
            caveats=[
                "At initialisation; that a product of [d, d/k] and [d/k, d] has no more than rank d/k is algebra."
            ],
        )
    ],
)
