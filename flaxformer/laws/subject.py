"""The subject of the laws: a run's model with weights and inputs, in double precision."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from flaxformer import model
from flaxformer.component import Aux, with_aux
from flaxformer.params import Parameters, path_name
from flaxformer.parts.inputs import Inputs
from flaxformer.parts.norms import Norm
from flaxformer.struct import Config, leaf, part
from flaxformer.tasks.base import Batch, whole
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
FAST: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiler options for programs that run a few times: compilation is then most of the time."""


def fast_jit(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` for a program that runs a few times, with little optimization on a CPU."""
    own = FAST if jax.default_backend() == "cpu" else {}
    return jax.jit(function, compiler_options=own | options)


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
            return jax.device_get(whole(self.run.task.load().batch(jax.random.key(self.seed), 0)))

    def _rows(self, rows: int, length: int) -> Batch:
        """First rows of the task's batch; sequences are cut to at most `length` tokens where they can be."""
        found = jax.tree.map(lambda x: np.asarray(x)[:rows], self._task_batch)
        own = found.inputs.shape[1]
        if found.inputs.ndim > 3 or found.targets.shape[:2] != found.inputs.shape[:2] or own <= length:
            return found
        names = ("inputs", "targets", "weights", "valid", "segments", "positions")
        cut = {name: getattr(found, name)[:, :length] for name in names if getattr(found, name) is not None}
        if not np.all(cut["weights"].any(axis=1)):  # what the task scores is cut off: score everything
            cut["weights"] = np.ones_like(cut["weights"])
        return found.replace(**cut)

    @functools.cached_property
    def batch(self) -> Batch:
        """A few short rows in double precision."""
        return jax.tree.map(widen, self._rows(ROWS, LENGTH))

    @functools.cached_property
    def long_batch(self) -> Batch:
        """A few rows of the task's length in double precision."""
        return jax.tree.map(widen, self._rows(ROWS, LONGEST))

    @functools.cached_property
    def training_batch(self) -> Batch:
        """Rows of the task's length in single precision, an even number of them where there are two."""
        rows = min(TRAINING_ROWS, len(jax.tree.leaves(self._task_batch)[0]))
        return jax.tree.map(jnp.asarray, self._rows(rows - rows % 2 if rows > 1 else 1, LONGEST))

    @functools.cached_property
    def started(self) -> Any:
        """The state before the first training step."""
        with jax.enable_x64(False):
            return start_state(self.run)

    @functools.cached_property
    def params(self) -> Any:
        """The weights in double precision, none of them at its initial value."""
        return self.shaken(jax.device_get(self.started.params))

    def shaken(self, params: Any) -> Any:
        """Weights with noise added, in double precision."""
        dice = np.random.default_rng(self.seed)

        def moved(path: Any, x: np.ndarray) -> np.ndarray:
            scale = 0.1 * max(float(x.std()), 0.3) if x.size else 0.0
            y = np.asarray(x, np.float64) + scale * dice.standard_normal(x.shape)
            return np.abs(y) if path_name(path).endswith("variance") else y

        return jax.tree_util.tree_map_with_path(moved, params)

    @property
    def trained(self) -> Any:
        """A tree like the weights: True where gradients change them."""
        return trained_mask(self.params, self.config)

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """What the task gives beside the inputs of `batch`."""
        return of_batch(self.batch)

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
        return self.filled_config(0.0)

    def filled_config(self, fill: float) -> Any:
        """Return the config of the same model that reads `vectors`, and whose blocks find `fill` at padding."""
        config = self.config
        changes: dict[str, Any] = {"inputs": without_embedding(config.inputs)}
        if hasattr(config, "norm"):
            norm = config.embedding_norm
            kind: Any = None if norm is None else type(norm)
            filled = _filled_norm(kind)(own=norm, fill=fill)
            changes["norm"] = config.norm.replace(embedding=filled)
        return config.replace(**changes)

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
        return _probe(self.params, vectors, self.filled_config(fill), given | {"valid": valid}, counted)

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
            return _forward(params, self.config, inputs, given, None)

        return jax.jit(call).lower(self.params, self.batch.inputs, self.given).compile()

    @functools.cached_property
    def traced(self) -> Any:
        """The model's forward pass as a traced program."""
        return jax.make_jaxpr(_forward)(self.params, self.config, self.batch.inputs, self.given, None)

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
        return 3e-5 if self.uses_single_precision else 1e-9

    # --- what the model is ---------------------------------------------------------------------------------

    @property
    def is_causal(self) -> bool:
        """True if no output may depend on later tokens; of a prefix-LM, where no prefix is given."""
        config = self.config
        return bool(getattr(config, "is_causal", True)) and getattr(config, "visibility", "causal") != "full"

    @property
    def answers_each_token(self) -> bool:
        """True if there is an output per token."""
        return getattr(self.config.head, "pool", "none") == "none"

    @property
    def reads_tokens(self) -> bool:
        """Whether the inputs are the ids of tokens."""
        return self.config.inputs.reads == "tokens"

    @property
    def mixes_batch(self) -> bool:
        """True if a norm declares that its statistics in training are of the whole batch."""
        encoder = getattr(self.config, "encoder", None)
        return bool(self.config.mixes_batch or (encoder is not None and encoder.mixes_batch))

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


def of_batch(batch: Batch) -> dict[str, Any]:
    """Return what a batch gives beside its inputs."""
    return {name: value for name, value in batch.given.items() if value is not None}


def widen(x: Any) -> np.ndarray:
    """Return the array, in float64 where it holds real numbers."""
    x = np.asarray(x)
    return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x


def narrow(x: Any) -> np.ndarray:
    """Return the array, in float32 where it is float64."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == np.float64 else x


def _forward(params: Any, config: Any, inputs: Any, given: Any, key: Any) -> Any:
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
_apply = fast_jit(_forward)
_embed = fast_jit(_embedded)
_probe = fast_jit(_probed)
_loss = fast_jit(_training_loss)
loss_and_gradient = fast_jit(jax.value_and_grad(_training_loss))
start_state = fast_jit(start)


@functools.cache
def _without_embedding(kind: Any) -> Any:
    def apply(self: Any, weights: Any, inputs: Any, token_types: Any, table: Any, sizes: Any) -> Any:
        return inputs

    return type(f"_Embedded{kind.__name__}", (kind,), {"apply": apply, "has_tokens": False, "__module__": __name__})


def without_embedding(inputs: Inputs) -> Inputs:
    """Return inputs with the same weights that take vectors as they are."""
    values = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    kind: Any = type(inputs)
    found: Inputs = _without_embedding(kind)(**values)
    return found


@functools.cache
def _filled_norm(kind: Any) -> Any:
    """The class of a norm after the embedding, of this kind or the identity, that then overwrites padding."""

    class _Filled(Norm):
        own: Norm | None = part(None)
        fill: float = leaf(0.0)

        is_causal = property(lambda self: self.own is None or self.own.is_causal)
        mixes_batch = property(lambda self: self.own is not None and self.own.mixes_batch)

        def apply(self, weights: Any, x: Any, context: Any) -> Any:
            y, aux = (x, Aux()) if self.own is None else with_aux(self.own.apply(weights, x, context))
            if context.valid is not None:
                pattern = 1 + jnp.sin(jnp.arange(math.prod(y.shape[-2:])).reshape(y.shape[-2:]))
                pattern = jnp.broadcast_to((self.fill * pattern).astype(y.dtype), y.shape)
                y = jnp.where(context.valid[..., None], y, pattern)
            return y, aux

    _Filled.Weights = Parameters if kind is None else kind.Weights  # type: ignore[misc,assignment]
    return _Filled


def configs_in(config: Any) -> list[Config]:
    """Return a config and every config in it."""
    if isinstance(config, tuple):
        return [inner for item in config for inner in configs_in(item)]
    if not isinstance(config, Config):
        return []
    return [config, *(inner for f in dataclasses.fields(config) for inner in configs_in(getattr(config, f.name)))]


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a traced program and of the programs within it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)
