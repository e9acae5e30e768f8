"""In-context regression: a linear function that is drawn anew in every example is to be learned from its values.

    x₁ y₁ x₂ y₂ … x_n, with y_i = w · x_i and w, x_i ~ N(0, I_d); y_i is asked for at every x_i

Family: tasks
Source: Garg et al. 2022, "What Can Transformers Learn In-Context? A Case Study of Simple Function Classes",
arXiv:2208.01066, section 3; github.com/dtsip/in-context-learning at 3383371, at the end of its curriculum (20 numbers,
41 points), which begins with 5 numbers and 11 points.
Claim: a Transformer of 12 layers has errors comparable to those of least squares, the optimum.
Cost: none.
Verified: moments of the published generator; the ceiling by least squares of NumPy.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array

from flaxformer import Batch, Regressor, Vectors, VectorTask, static


class InContextRegression(VectorTask):
    """Predict y_i from the i − 1 pairs before and x_i; a y is a vector with the number in front of zeros.

    width: d, the number of coordinates of x.
    points: n, the number of pairs.
    """

    width: int = static(20, at_least=1)
    points: int = static(41, at_least=1)

    @property
    def sequence_length(self) -> int:
        return 2 * self.points - 1

    @property
    def inputs(self) -> Vectors:
        return Vectors(width=self.width)

    @property
    def head(self) -> Regressor:
        return Regressor(numbers=1, pool="none")

    @property
    def ceiling(self) -> float:
        """Mean over i of max(d − i + 1, 0): the error of least squares of the least norm, the posterior mean."""
        return sum(max(self.width - seen, 0) for seen in range(self.points)) / self.points

    @property
    def chance(self) -> float:
        """Variance d of y, the error of 0."""
        return float(self.width)

    def example(self, key: Array) -> Batch:
        for_x, for_w = jax.random.split(key)
        x = jax.random.normal(for_x, (self.points, self.width))
        y = x @ jax.random.normal(for_w, (self.width,))
        pairs = jnp.stack([x, jnp.zeros_like(x).at[:, 0].set(y)], axis=1).reshape(2 * self.points, self.width)
        return Batch(
            inputs=pairs[:-1],
            targets=jnp.repeat(y, 2)[:-1, None],
            weights=(jnp.arange(self.sequence_length) % 2 == 0).astype(jnp.float32),
        )

    def references(self) -> dict[str, float]:
        """Return the expected errors of 0 and of least squares."""
        return {"zero": self.chance, "least squares": self.ceiling}


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "linear regression": {
        "task": InContextRegression(),
        "model.inputs": Vectors(width=20),
        "model.head": Regressor(numbers=1, pool="none"),
    }
}
