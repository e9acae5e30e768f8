"""Subject of the laws: a run's model with weights and inputs, in double precision."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import model
from flaxformer.laws.embedded import embedded_config
from flaxformer.laws.inputs import arguments_of, first_rows, widen
from flaxformer.laws.law import TOLERANCES
from flaxformer.laws.programs import equations, fast_jit
from flaxformer.params import path_name
from flaxformer.struct import Config
from flaxformer.tasks.base import Batch, concat_parts
from flaxformer.training import Run, start
from flaxformer.training.step import forward, train_step
from flaxformer.training.step import loss as loss_of
from flaxformer.weight_axes import trained_mask

ROWS, LENGTH = 2, 12
"""Size of the inputs, where a model and its task do not fix it."""
LONGEST = 256
"""Most tokens of the inputs that have the length of the task."""
TRAINING_ROWS = 8
"""Most rows of the inputs of a training step."""


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """One model under test.

    Weights are the initial ones with noise added, so that nothing is hidden behind an initial 0. Inputs are the first
    rows of a training batch. Everything is computed in float64, except by laws about precision and training steps.
    """

    given_run: Run
    seed: int = 0

    @functools.cached_property
    def run(self) -> Run:
        """The run, computed in one piece and without rounding to bfloat16."""
        training = self.given_run.training.replace(precision="float32", micro_batches=1)
        return self.given_run.replace(training=training)

    @property
    def config(self) -> Any:
        """The model's config."""
        return self.run.model

    # --- inputs and weights --------------------------------------------------------------------------------

    @functools.cached_property
    def _task_batch(self) -> Batch:
        with jax.enable_x64(False):
            return jax.device_get(concat_parts(self.run.task.load().batch(jax.random.key(self.seed), 0)))

    @functools.cached_property
    def batch(self) -> Batch:
        """A few short rows in double precision."""
        return jax.tree.map(widen, first_rows(self._task_batch, ROWS, LENGTH))

    @functools.cached_property
    def long_batch(self) -> Batch:
        """A few rows of the task's length in double precision."""
        return jax.tree.map(widen, first_rows(self._task_batch, ROWS, LONGEST))

    @functools.cached_property
    def training_batch(self) -> Batch:
        """Rows of the task's length in single precision, an even number of them where there are two."""
        rows = min(TRAINING_ROWS, len(jax.tree.leaves(self._task_batch)[0]))
        return jax.tree.map(jnp.asarray, first_rows(self._task_batch, rows - rows % 2 if rows > 1 else 1, LONGEST))

    @functools.cached_property
    def started(self) -> Any:
        """The state before the first training step."""
        with jax.enable_x64(False):
            return start_state(self.run)

    @functools.cached_property
    def params(self) -> Any:
        """The weights in double precision, none of them at its initial value."""
        dice = np.random.default_rng(self.seed)

        def add_noise(path: Any, x: np.ndarray) -> np.ndarray:
            scale = 0.1 * max(float(x.std()), 0.3) if x.size else 0.0
            y = np.asarray(x, np.float64) + scale * dice.standard_normal(x.shape)
            return np.abs(y) if path_name(path).endswith("variance") else y

        return jax.tree_util.tree_map_with_path(add_noise, jax.device_get(self.started.params))

    @property
    def trained(self) -> Any:
        """A tree like the weights: True where gradients change them."""
        return trained_mask(self.params, self.config)

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """The arguments that the task gives beside the inputs of `batch`."""
        return arguments_of(self.batch)

    @functools.cached_property
    def source(self) -> dict[str, Any]:
        """The source of an encoder and its padding; empty without an encoder."""
        return {name: value for name, value in self.given.items() if name in ("source", "source_valid")}

    def other_inputs(self, seed: int = 1, batch: Batch | None = None) -> Any:
        """Inputs of the same shape with other contents everywhere."""
        dice = np.random.default_rng(seed)
        inputs = np.asarray((batch or self.batch).inputs)
        if self.reads_tokens:
            vocabulary = self.config.vocabulary
            return ((inputs + dice.integers(1, max(2, vocabulary), inputs.shape)) % vocabulary).astype(inputs.dtype)
        return inputs + dice.standard_normal(inputs.shape)

    @functools.cached_property
    def vectors(self) -> Any:
        """The inputs of `batch` after the embedding, [rows, T, d_embedding], for `embedded_config`."""
        return np.asarray(_embed(self.params.embedding, self.config, self.batch.inputs))

    @functools.cached_property
    def embedded_config(self) -> Any:
        """The config of the same model that reads `vectors` in place of the task's inputs."""
        return embedded_config(self.config)

    # --- calls of the model --------------------------------------------------------------------------------

    def output(self, inputs: Any = None, params: Any = None, **given: Any) -> Any:
        """Return the model's output for the batch; with other inputs or weights where they are given.

        Args:
          given: replaces or adds to what the task gives; `key` trains, and `config` is another config.
        """
        key, config = given.pop("key", None), given.pop("config", self.config)
        inputs = self.batch.inputs if inputs is None else inputs
        given = {name: value for name, value in (self.given | given).items() if value is not None}
        return _apply(self.params if params is None else params, config, inputs, given, key)

    def probe(self, vectors: Any, valid: Any, counted: Any, fill: float = 0.0, **given: Any) -> tuple[Any, Any, Any]:
        """Return the output for embedded inputs, and the gradient of Σ sin(output) by those inputs and by the weights.

        Args:
          valid: False at padding.
          counted: the tokens whose outputs are summed (rows, for a model with one output per sequence).
          fill: what blocks find at padding.
          given: what the model is given beside.
        """
        given = {name: value for name, value in given.items() if value is not None}
        return _probe(self.params, vectors, embedded_config(self.config, fill), given | {"valid": valid}, counted)

    @functools.cached_property
    def loss_and_gradient(self) -> tuple[Any, Any]:
        """The training loss and its gradient by every weight."""
        return loss_and_gradient(self.params, self.run, self.batch, random_key())

    def loss(self, params: Any) -> Any:
        """Return the training loss for some weights."""
        return _loss(params, self.run, self.batch, random_key())

    def stepped(self, state: Any, run: Run) -> tuple[Any, Any]:
        """Return the metrics of a training step in single precision, and the model's output before it."""
        return _stepped(state, run, self.training_batch)

    @functools.cached_property
    def compiled(self) -> Any:
        """The model's forward pass, compiled with all optimizations."""

        def call(params: Any, inputs: Any, given: Any) -> Any:
            return forward_pass(params, self.config, inputs, given)

        return jax.jit(call).lower(self.params, self.batch.inputs, self.given).compile()

    @functools.cached_property
    def traced(self) -> Any:
        """The model's forward pass as a traced program."""
        return jax.make_jaxpr(forward_pass)(self.params, self.config, self.batch.inputs, self.given)

    @functools.cached_property
    def uses_single_precision(self) -> bool:
        """True if some numbers are rounded to float32 or less although inputs and weights are float64."""
        return any(
            getattr(variable.aval, "dtype", None) in (jnp.float32, jnp.bfloat16, jnp.float16)
            for equation in equations(self.traced.jaxpr)
            for variable in equation.outvars
        )

    @property
    def tolerance(self) -> float:
        """The largest difference between two computations of the same numbers."""
        return TOLERANCES["float32" if self.uses_single_precision else "float64"]

    # --- what the model is ---------------------------------------------------------------------------------

    @property
    def why_not_causal(self) -> str | None:
        """Reason why an output may depend on later tokens; None where none may (of a prefix-LM, without a prefix)."""
        config = self.config
        if config.mask_pattern == "bidirectional":
            return "a token may read later ones: the model is bidirectional"
        if not config.is_causal:
            kinds = {type(norm).__name__ for norm in config.norms if not norm.is_causal}
            return f"{', '.join(sorted(kinds))} declares that it reads later tokens"
        return None if self.answers_each_token else "the model has one output per sequence"

    @property
    def answers_each_token(self) -> bool:
        """True if there is an output per token."""
        return bool(self.config.head.pool == "none")

    @property
    def reads_tokens(self) -> bool:
        """True if the inputs are the ids of tokens."""
        return self.config.inputs.reads == "tokens"

    @property
    def mixes_batch(self) -> bool:
        """True if a norm declares that its statistics in training are of the whole batch."""
        stacks = (self.config, self.config.encoder)
        return any(stack is not None and stack.mixes_batch for stack in stacks)

    @property
    def components(self) -> list[Config]:
        """Every config within the run."""
        return configs_in(self.run)

    def exemption(self, law: str) -> str | None:
        """Return why a component of the run is exempt from a law; None where none is."""
        for component in self.components:
            reasons = getattr(component, "exempt_from", {})
            if law in reasons:
                return f"{type(component).__name__} declares: {reasons[law]}"
        return None


def random_key() -> jax.Array:
    """Return the key for dropout and other random draws in training."""
    return jax.random.key(7)


def forward_pass(params: Any, config: Any, inputs: Any, given: Any, key: Any = None) -> Any:
    """Return the model's output; with a key, as in training."""
    return model.apply(params, config, inputs, dropout_key=key, **given)


def _embedded(weights: Any, config: Any, inputs: Any) -> Any:
    return config.inputs.apply(weights, inputs, None, None, config.sizes)


def _probed(params: Any, vectors: Any, config: Any, given: Any, counted: Any) -> Any:
    def value(params: Any, vectors: Any) -> Any:
        output = model.apply(params, config, vectors, **given)
        chosen = counted.reshape(*counted.shape, *(1,) * (output.ndim - counted.ndim))
        return jnp.sin(jnp.where(chosen, output, 0)).sum(), output

    (_, output), (by_params, by_vectors) = jax.value_and_grad(value, argnums=(0, 1), has_aux=True)(params, vectors)
    return output, by_vectors, by_params


def _training_loss(params: Any, run: Run, batch: Any, key: Any) -> Any:
    return loss_of(params, run, batch, key)[0]


def one_step(state: Any, run: Run, batch: Any) -> tuple[Any, Any]:
    """Return the metrics of a training step, and the output of the model before it."""
    return train_step(state, run, batch)[1], forward(state.params, run, batch).output


_stepped = fast_jit(one_step)
_apply = fast_jit(forward_pass)
_embed = fast_jit(_embedded)
_probe = fast_jit(_probed)
_loss = fast_jit(_training_loss)
loss_and_gradient = fast_jit(jax.value_and_grad(_training_loss))
start_state = fast_jit(start)


def configs_in(config: Any) -> list[Config]:
    """Return a config and every config in it."""
    if isinstance(config, tuple):
        return [inner for item in config for inner in configs_in(item)]
    if not isinstance(config, Config):
        return []
    return [config, *(inner for f in dataclasses.fields(config) for inner in configs_in(getattr(config, f.name)))]
