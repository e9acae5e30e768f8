"""Modular addition: a table of sums, a part of which is held out."""

from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer.core.struct import static
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.examples import ExampleSource, permute
from flaxformer.tasks.synthetic import next_token


class ModularAddition(Task):
    """Predict c = (a + b) mod modulus from the tokens a, b, "="; only c is scored (Power et al. 2022).

    A `fraction` of all modulus² pairs (a, b) is for training, and the rest for evaluation. The split depends only on
    `split_seed`, so that runs with different seeds share it.
    """

    targets_in_inputs: ClassVar[bool] = False

    modulus: int = static(97, at_least=2)
    fraction: float = static(0.5, above=0, below=1)
    split_seed: int = static(0, at_least=0, below=2**32)

    def problems(self) -> Iterator[str]:
        if not 0 < self.training_pairs < self.modulus**2:
            yield (
                f"fraction is {self.fraction}, {self.training_pairs} of the {self.modulus**2} pairs; "
                "expected at least one pair on each side"
            )

    @property
    def training_pairs(self) -> int:
        """Number of training pairs."""
        return round(self.fraction * self.modulus**2)

    @property
    def vocabulary(self) -> int:
        return self.modulus + 1

    @property
    def sequence_length(self) -> int:
        return 3

    @property
    def ceiling(self) -> float:
        return 1.0

    @property
    def chance(self) -> float:
        return 1 / self.modulus

    def load(self) -> ExampleSource:
        order = permute(self.modulus**2, self.split_seed)
        return ExampleSource(
            self._examples(order[: self.training_pairs]), self._examples(order[self.training_pairs :]), self
        )

    def _examples(self, pairs: np.ndarray) -> Batch:
        a, b = pairs // self.modulus, pairs % self.modulus
        tokens = np.stack([a, b, np.full_like(a, self.modulus), (a + b) % self.modulus], axis=1)
        return jax.vmap(next_token, in_axes=(0, None))(jnp.asarray(tokens, jnp.int32), jnp.arange(4) == 3)
