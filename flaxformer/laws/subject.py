"""Subject of the laws: a run's model with weights and inputs, in double precision."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.tree_util import KeyPath
from jaxtyping import Array, Bool, PyTree

from flaxformer.config import ModelConfig
from flaxformer.core.params import path_name
from flaxformer.core.struct import Config
from flaxformer.core.weight_axes import trained_mask
from flaxformer.laws import calls
from flaxformer.laws.calls import Metrics, ModelInputs
from flaxformer.laws.configs import configs_in, without_dropout
from flaxformer.laws.embedded import embedded_config, give_vectors
from flaxformer.laws.inputs import Arguments, arguments_of, first_rows, lengthen, to_float64
from flaxformer.laws.law import TOLERANCES
from flaxformer.laws.programs import draws_of, has_single_precision
from flaxformer.model import Transformer
from flaxformer.tasks.batch import Batch, concat_parts
from flaxformer.training import Run
from flaxformer.training.step import TrainState

ROWS, LENGTH = 2, 24
"""Largest number of rows, and of tokens per row, of inputs that many calls read."""
LONG_ROWS, FEWEST_ROWS, LONG_TOKENS = 8, 3, 768
"""Number of rows of long inputs: as many as `LONG_TOKENS` tokens allow, between these two."""
LONGEST = 256
"""Largest number of tokens that long inputs have of the task's length."""
LONGER = 5
"""Number of tokens by which long inputs exceed the task's length, so that a fault cannot begin behind them."""
TRAINING_ROWS = 8
"""Largest number of rows in inputs of a training step."""


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """One model under test.

    Weights are the initial ones plus noise, so that an initial 0 cannot hide an effect. Inputs are the first rows of
    training batches, longer than the task's by `LONGER` tokens. All computations are in float64, except in laws about
    precision and training steps.
    """

    original_run: Run
    seed: int = 0

    @functools.cached_property
    def run(self) -> Run:
        """The run without micro-batches and without rounding to bfloat16."""
        training = self.original_run.training.replace(precision="float32", micro_batches=1)
        return self.original_run.replace(training=training)

    @property
    def config(self) -> ModelConfig:
        """The model's config."""
        return self.run.model

    # --- inputs and weights --------------------------------------------------------------------------------

    @functools.cached_property
    def _task_batches(self) -> list[Batch]:
        """The batches of the first steps, which together have `LONG_ROWS` rows or more."""
        with jax.enable_x64(False):
            source, batches, rows = self.run.task.load(), list[Batch](), 0
            while rows < LONG_ROWS:
                batch = source.batch(jax.random.key(self.seed), len(batches))
                batches.append(jax.device_get(concat_parts(batch)))
                rows += batches[-1].inputs.shape[0]
        return batches

    @functools.cached_property
    def long_batch(self) -> Batch:
        """Rows that are longer than the task's, in double precision, as far as the model's max_length allows."""
        whole = jax.tree.map(lambda *parts: np.concatenate(parts), *self._task_batches)
        cut, limit = first_rows(whole, LONG_ROWS, LONGEST), self.config.max_length
        longer = cut if whole.inputs.ndim > 3 else lengthen(cut, LONGER, limit)
        rows = max(FEWEST_ROWS, min(LONG_ROWS, LONG_TOKENS // longer.inputs.shape[1]))
        return jax.tree.map(lambda x: to_float64(x[:rows]), longer)

    @functools.cached_property
    def batch(self) -> Batch:
        """A few short rows of `long_batch`."""
        return first_rows(self.long_batch, ROWS, LENGTH)

    @functools.cached_property
    def training_batch(self) -> Batch:
        """Rows of the task's length in single precision; their number is even or 1."""
        batch = self._task_batches[0]
        rows = min(TRAINING_ROWS, len(batch.inputs))
        return jax.tree.map(jnp.asarray, first_rows(batch, rows - rows % 2 if rows > 1 else 1, LONGEST))

    @functools.cached_property
    def initial_state(self) -> TrainState:
        """The state before the first training step."""
        with jax.enable_x64(False):
            return calls.start_state(self.run)

    @functools.cached_property
    def params(self) -> Transformer:
        """The weights in double precision, with noise."""
        random = np.random.default_rng(self.seed)

        def add_noise(path: KeyPath, x: np.ndarray) -> np.ndarray:
            scale = 0.1 * max(float(x.std()), 0.3) if x.size else 0.0
            y = np.asarray(x, np.float64) + scale * random.standard_normal(x.shape)
            return np.abs(y) if path_name(path).endswith("variance") else y

        return jax.tree_util.tree_map_with_path(add_noise, jax.device_get(self.initial_state.params))

    @property
    def is_trained(self) -> PyTree[bool]:
        """A tree like the weights, True at weights that gradients change."""
        return trained_mask(self.params, self.config)

    @functools.cached_property
    def arguments(self) -> dict[str, PyTree]:
        """The arguments of a forward pass beside the inputs of `batch`."""
        return arguments_of(self.batch)

    @functools.cached_property
    def source(self) -> dict[str, PyTree]:
        """The source of an encoder and its padding; empty without an encoder."""
        return self.source_of(self.batch)

    @staticmethod
    def source_of(batch: Batch) -> dict[str, PyTree]:
        """Return the source that a batch has, and its padding; empty without a source."""
        names = ("source", "source_valid")
        return {name: jnp.asarray(value) for name, value in arguments_of(batch).items() if name in names}

    def other_inputs(self, seed: int = 1, batch: Batch | None = None) -> np.ndarray:
        """Return inputs of the same shape, with other contents everywhere."""
        random = np.random.default_rng(seed)
        inputs = np.asarray((batch or self.batch).inputs)
        if self.reads_tokens:
            vocabulary = self.config.vocabulary
            return ((inputs + random.integers(1, max(2, vocabulary), inputs.shape)) % vocabulary).astype(inputs.dtype)
        return inputs + random.standard_normal(inputs.shape)

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        """The inputs of `batch` after the embedding, [rows, T, d_embedding], for `embedded_config`."""
        return np.asarray(calls.embed(self.params.embedding, self.config, self.batch.inputs))

    @functools.cached_property
    def long_vectors(self) -> np.ndarray:
        """The same for `long_batch`."""
        return np.asarray(calls.embed(self.params.embedding, self.config, self.long_batch.inputs))

    @functools.cached_property
    def embedded_config(self) -> ModelConfig:
        """The config of the same model that reads `vectors` in place of the task's inputs."""
        return embedded_config(self.config)

    # --- calls of the model --------------------------------------------------------------------------------

    def output(
        self,
        inputs: ModelInputs | None = None,
        params: Transformer | None = None,
        *,
        config: ModelConfig | None = None,
        key: Array | None = None,
        **arguments: PyTree,
    ) -> Array:
        """Return the model's output for the batch.

        Args:
          inputs, params, config: others than those of the subject.
          key: if given, run the model as in training, with this random key.
          arguments: those that replace those of the batch; None leaves one out.
        """
        inputs = self.batch.inputs if inputs is None else inputs
        arguments = {name: value for name, value in (self.arguments | arguments).items() if value is not None}
        config = self.config if config is None else config
        return calls.apply(self.params if params is None else params, config, inputs, arguments, key)

    def scaled_output(self, inputs: ModelInputs, arguments: Arguments, params: Transformer | None = None) -> Array:
        """Return the output for inputs if what each branch reads is multiplied by `calls.LARGE`."""
        arguments = {name: value for name, value in arguments.items() if value is not None}
        return calls.apply_scaled(
            self.params if params is None else params, self.config, inputs, arguments, calls.LARGE
        )

    def embedded_call(self, vectors: np.ndarray, batch: Batch, params: Transformer | None = None) -> dict[str, PyTree]:
        """Return the arguments of `output` by which the model reads vectors in place of the embeddings of a batch."""
        embedded, inputs = give_vectors(self.params if params is None else params, self.config, vectors, batch.inputs)
        return {"params": embedded, "inputs": inputs, "config": self.embedded_config}

    def probe(
        self,
        vectors: np.ndarray,
        tokens: ModelInputs,
        valid: Bool[np.ndarray, "rows T"],
        counted: Bool[np.ndarray, "rows *T"],
        fill: float = 0.0,
        **arguments: PyTree,
    ) -> tuple[Array, Array, Transformer]:
        """Return the output for embedded inputs, and the gradient of Σ sin(output) by these inputs and by the weights.

        Args:
          vectors: inputs [rows, T, d_embedding].
          tokens: what components get as tokens [rows, T]; not read by a model of vectors or images.
          valid: False at padding.
          counted: True at tokens whose outputs are summed (at rows, if the model has one output per sequence).
          fill: factor of the pattern that overwrites the embeddings at padding.
          arguments: further arguments of the model.
        """
        arguments = {name: value for name, value in arguments.items() if value is not None}
        config, arguments = embedded_config(self.config, fill), arguments | {"valid": valid}
        return calls.probe(self.params, vectors, config, arguments, counted, tokens)

    @functools.cached_property
    def loss_and_gradient(self) -> tuple[Array, Transformer]:
        """The training loss and its gradient by every weight."""
        return calls.loss_and_gradient(self.params, self.run, self.batch, calls.random_key())

    def loss(self, params: Transformer) -> Array:
        """Return the training loss for some weights."""
        return calls.loss(params, self.run, self.batch, calls.random_key())

    def step(self, state: TrainState, run: Run) -> tuple[Metrics, Array]:
        """Return the metrics of a training step in single precision, and the model's output before it."""
        return calls.step(state, run, self.training_batch)

    @functools.cached_property
    def compiled_program(self) -> jax.stages.Compiled:
        """The model's forward pass, compiled with all optimizations."""

        def call(params: Transformer, inputs: ModelInputs, arguments: Arguments) -> Array:
            return calls.forward_pass(params, self.config, inputs, arguments)

        return jax.jit(call).lower(self.params, self.batch.inputs, self.arguments).compile()

    @functools.cached_property
    def traced_program(self) -> ClosedJaxpr:
        """The model's forward pass as a traced program."""
        return jax.make_jaxpr(calls.forward_pass)(self.params, self.config, self.batch.inputs, self.arguments)

    @functools.cached_property
    def uses_single_precision(self) -> bool:
        """True if some intermediate result is float32 or less although inputs and weights are float64."""
        return has_single_precision(self.traced_program.jaxpr)

    @functools.cached_property
    def draws(self) -> bool:
        """True if a component draws random numbers in training, beside dropout that `ModelConfig.dropout` asks for."""
        plain = self.run.replace(model=without_dropout(self.config))
        traced = jax.make_jaxpr(calls.training_loss)(self.params, plain, self.batch, calls.random_key())
        return bool(draws_of(traced.jaxpr))

    @property
    def tolerance(self) -> float:
        """Largest relative difference between two computations of equal values."""
        return TOLERANCES["float32" if self.uses_single_precision else "float64"]

    # --- what the model is ---------------------------------------------------------------------------------

    @property
    def reason_not_causal(self) -> str | None:
        """Reason why outputs may depend on later tokens; None for a causal model, or a prefix-LM without a prefix."""
        config = self.config
        if config.mask_pattern == "bidirectional":
            return "a token may read later ones: the model is bidirectional"
        if not config.is_causal:
            kinds = {type(norm).__name__ for norm in config.norms if not norm.is_causal}
            return f"{', '.join(sorted(kinds))} declares that it reads later tokens"
        return None if self.has_output_per_token else "the model has one output per sequence"

    @property
    def has_output_per_token(self) -> bool:
        """True if there is one output per token."""
        return bool(self.config.head.pool == "none")

    @property
    def reads_tokens(self) -> bool:
        """True if the inputs are token ids."""
        return self.config.inputs.reads == "tokens"

    @property
    def mixes_batch(self) -> bool:
        """True if a component declares that the sequences of a batch depend on each other in training."""
        stacks = (self.config, self.config.encoder)
        return any(stack is not None and stack.mixes_batch for stack in stacks)

    @property
    def components(self) -> list[Config]:
        """Every config within the run."""
        return configs_in(self.run)

    def exemption(self, law: str) -> str | None:
        """Return the reason why a component of the run is exempt from a law; None if none is."""
        for component in self.components:
            if law in (reasons := getattr(component, "exempt_from", {})):
                return f"{type(component).__name__} declares: {reasons[law]}"
        return None
