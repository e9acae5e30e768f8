"""The subject of the laws: a run's model with weights, inputs and what it is given, in double precision."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import model
from flaxformer.params import path_name
from flaxformer.struct import Config
from flaxformer.tasks.base import Batch, whole
from flaxformer.training import Run
from flaxformer.weight_axes import trained_mask

ROWS = 2
LENGTH = 12
"""Tokens of the inputs, where a model and its task do not fix their number."""


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """One model under test.

    Weights are those of the start with noise added, so that nothing is hidden behind an initial 0. Inputs are the first
    rows of a training batch, shortened where sequences may have any length.
    """

    run: Run
    seed: int = 0

    @property
    def config(self) -> Any:
        """The model's config."""
        return self.run.model

    @functools.cached_property
    def batch(self) -> Batch:
        """The batch, in double precision."""
        full = jax.device_get(whole(self.run.task.load().batch(jax.random.key(self.seed), 0)))
        rows = jax.tree.map(lambda x: np.asarray(x)[:ROWS], full)
        length = rows.inputs.shape[1]
        if rows.inputs.ndim == 2 and rows.targets.shape[:2] == rows.inputs.shape and length > LENGTH:
            names = ("inputs", "targets", "weights", "valid", "segments", "positions")
            cut = {name: getattr(rows, name)[:, :LENGTH] for name in names if getattr(rows, name) is not None}
            rows = rows.replace(**cut)
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) if np.issubdtype(x.dtype, np.floating) else x, rows)

    @functools.cached_property
    def params(self) -> Any:
        """The weights, in double precision, none of them at its initial value."""
        start = jax.device_get(model.init(jax.random.key(self.seed), self.config))
        dice = np.random.default_rng(self.seed)

        def shaken(path: Any, x: np.ndarray) -> jax.Array:
            spread = 0.1 * max(float(x.std()), 0.3)
            moved = x + spread * dice.standard_normal(x.shape)
            return jnp.asarray(np.abs(moved) if path_name(path).endswith("variance") else moved, jnp.float64)

        return jax.tree_util.tree_map_with_path(shaken, start)

    @property
    def trained(self) -> Any:
        """A tree like the weights: whether gradients change each."""
        return trained_mask(self.params, self.config)

    def output(self, inputs: Any = None, params: Any = None, **given: Any) -> Any:
        """The model's answer to the batch, evaluated; with other inputs, weights or padding where they are given."""
        own = {name: value for name, value in self.batch.given.items() if value is not None}
        inputs = self.batch.inputs if inputs is None else inputs
        return _apply(self.params if params is None else params, self.config, inputs, own | given)

    @property
    def is_causal(self) -> bool:
        """Whether no answer may depend on later tokens."""
        return (
            bool(getattr(self.config, "is_causal", True)) and getattr(self.config, "visibility", "causal") == "causal"
        )

    @property
    def answers_each_token(self) -> bool:
        """Whether there is an answer for every token."""
        return getattr(self.config.head, "pool", "none") == "none"

    @property
    def reads_tokens(self) -> bool:
        """Whether the inputs are the ids of tokens."""
        return self.config.inputs.reads == "tokens"

    def other_inputs(self, seed: int = 1) -> Any:
        """Inputs of the same shape with other contents everywhere."""
        dice = np.random.default_rng(seed)
        inputs = np.asarray(self.batch.inputs)
        if self.reads_tokens:
            vocabulary = self.config.vocabulary
            return jnp.asarray((inputs + dice.integers(1, max(2, vocabulary), inputs.shape)) % vocabulary, inputs.dtype)
        return jnp.asarray(inputs + dice.standard_normal(inputs.shape))

    def exemption(self, law: str) -> str | None:
        """Why a component of the model is exempt from a law; None where none is."""
        for component in _configs(self.config):
            reasons = getattr(component, "exempt_from", {})
            if law in reasons:
                return f"{type(component).__name__} declares: {reasons[law]}"
        return None


_apply = jax.jit(lambda params, config, inputs, given: model.apply(params, config, inputs, **given))


def _configs(config: Any) -> list[Config]:
    """A config and every config in it."""
    if isinstance(config, tuple):
        return [inner for item in config for inner in _configs(item)]
    if not isinstance(config, Config):
        return []
    return [config, *(inner for f in dataclasses.fields(config) for inner in _configs(getattr(config, f.name)))]
