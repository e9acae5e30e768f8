"""Masked tokens of a text: tasks that predict them, and the generation of text by filling them in.

Source: Devlin et al. 2019, section 3.1, task 1.
"""

import functools
from collections.abc import Callable, Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.core.struct import static
from flaxformer.model.interface import apply
from flaxformer.model.sampling import Sampling, filter_logits
from flaxformer.model.weights import Transformer
from flaxformer.system.errors import UserError
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.corrupted import Corrupted, random_places

LogitsOf = Callable[[Int[Array, "B T"]], Float[Array, "B T V"]]
"""Function from the tokens of rows to the logits at each of them."""


class MaskedText(Corrupted):
    """Windows of L tokens of a text in which some are replaced by a mask token, the id after the text's own."""

    is_abstract: ClassVar[bool] = True
    targets_in_inputs: ClassVar[bool] = False

    @property
    def mask(self) -> int:
        """Id of the mask token."""
        return self.text.vocabulary

    @property
    def vocabulary(self) -> int:
        return self.text.vocabulary + 1

    @property
    def sequence_length(self) -> int:
        return self.text.length

    @property
    def generates(self) -> bool:
        """True if the task has a way to `fill_in` masked tokens."""
        return type(self).fill_in is not MaskedText.fill_in

    def complete(
        self,
        logits_of: LogitsOf,
        tokens: Int[ArrayLike, "*batch T"],
        *,
        steps: int,
        sampling: Sampling,
        key: Array,
    ) -> Int[Array, "*batch steps"]:
        """Return `steps` tokens that follow others: masked ones, which `fill_in` replaces.

        Args:
          logits_of: the model.
          sampling: distribution that each token is drawn from; the mask token is never drawn.

        Raises:
          UserError: the task has no `fill_in`, or steps is below 1.
        """
        if steps < 1:
            raise UserError(f"tokens is {steps}; expected at least 1")

        def filtered(rows: Int[Array, "B T"]) -> Float[Array, "B T V"]:
            return filter_logits(logits_of(rows).at[..., self.mask].set(-jnp.inf), sampling)

        read = jnp.asarray(tokens)
        masked = jnp.pad(read, [*((0, 0) for _ in read.shape[1:]), (0, steps)], constant_values=self.mask)
        filled = self.fill_in(filtered, jnp.atleast_2d(masked), key)
        return filled.reshape(masked.shape)[..., read.shape[-1] :]

    def fill_in(
        self,
        logits_of: LogitsOf,
        tokens: Int[Array, "B T"],
        key: Array,
    ) -> Int[Array, "B T"]:
        """Return tokens with all masked ones replaced by samples of a model; a task whose model generates defines it.

        Args:
          logits_of: logits of the distributions that tokens are drawn from, of all tokens of a row.
          tokens: known tokens, and `mask` at all others.
          key: of the draws.

        Raises:
          UserError: the task does not define it.
        """
        name = type(self).__name__
        raise UserError(f"{name} has no `fill_in`; expected a task whose model generates text, such as MaskedDiffusion")


@functools.partial(jax.jit, static_argnames=("task", "steps"))
def complete_text(
    params: Transformer,
    config: ModelConfig,
    task: MaskedText,
    tokens: Int[ArrayLike, "*batch T"],
    key: Array,
    *,
    steps: int,
    sampling: Sampling,
) -> Int[Array, "*batch steps"]:
    """Return `task.complete` with the logits of a model."""
    return task.complete(functools.partial(apply, params, config), tokens, steps=steps, sampling=sampling, key=key)


class MaskedTokens(MaskedText):
    """Masked language modelling: predict tokens at randomly chosen places, with a bidirectional model.

    In each window of L tokens, round(rate · L) places are chosen, and only these are scored. At a share `masked` of
    them the input is the mask token (the id after the text's own), at a share `random` a uniformly drawn token, and at
    the rest the token itself. Devlin et al. 2019 use 0.15, 0.8 and 0.1.
    """

    rate: float = static(0.15, above=0, at_most=1)
    masked: float = static(0.8, at_least=0, at_most=1)
    random: float = static(0.1, at_least=0, at_most=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.masked + self.random > 1 + 1e-9:
            yield f"masked and random are {self.masked} and {self.random}; expected at most 1 together"
        if not self.scored_places:
            places = f"0 places of a window of {self.text.length} tokens"
            yield f"rate is {self.rate}, which chooses {places}; expected at least one"

    @property
    def scored_places(self) -> int:
        """Number of scored places per window."""
        return round(self.rate * self.text.length)

    def corrupt(self, key: Array, window: Int[Array, "length"]) -> Batch:
        place_key, kind_key, token_key = jax.random.split(key, 3)
        chosen = random_places(place_key, window.size, self.scored_places)
        kind = jax.random.uniform(kind_key, window.shape)
        random_tokens = jax.random.randint(token_key, window.shape, 0, self.text.vocabulary)
        read = jnp.where(
            kind < self.masked, self.mask, jnp.where(kind < self.masked + self.random, random_tokens, window)
        )
        return Batch(inputs=jnp.where(chosen, read, window), targets=window, weights=chosen.astype(jnp.float32))

    def references(self) -> dict[str, float]:
        """Return the losses, at scored places, of a unigram model and of a bigram model.

        If the previous token is hidden or outside of the window, the bigram model uses the unigram probability. A
        trained model also reads the tokens after a place, and may be better than both.
        """
        evaluation = jax.device_get(self.load().evaluation())
        scored, before = evaluation.weights > 0, np.roll(evaluation.targets, 1, -1)
        is_visible = ~np.roll(scored, 1, -1)
        is_visible[..., 0] = False
        if evaluation.segments is not None:
            is_visible[..., 1:] &= evaluation.segments[..., 1:] == evaluation.segments[..., :-1]
        unigram, bigram = self._count_model_losses(before[scored], evaluation.targets[scored])
        return {
            "unigram": float(unigram.mean()),
            "bigram": float(np.where(is_visible[scored], bigram, unigram).mean()),
        }
