"""Compiled calls of a model and of its training step, as functions of all their arguments."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters
from flaxformer.laws.embedded import give_vectors
from flaxformer.laws.inputs import Arguments
from flaxformer.laws.programs import fast_jit
from flaxformer.model import Transformer
from flaxformer.tasks.batch import Batch
from flaxformer.training import Run, start
from flaxformer.training.loss import forward
from flaxformer.training.loss import loss as loss_of
from flaxformer.training.step import TrainState, train_step

Metrics = dict[str, Float[Array, ""]]
ModelInputs = Array | np.ndarray
"""Token ids, vectors or images, on the device or on the host."""


def random_key() -> jax.Array:
    """Return the random key of training."""
    return jax.random.key(7)


def forward_pass(
    params: Transformer, config: ModelConfig, inputs: ModelInputs, arguments: Arguments, key: Array | None = None
) -> Array:
    """Return the model's output; with a key, as in training."""
    return model.apply(params, config, jnp.asarray(inputs), dropout_key=key, **arguments)


LARGE = 1000.0
"""Factor of what each branch reads, where activations are large."""


def scaled_forward_pass(
    params: Transformer, config: ModelConfig, inputs: ModelInputs, arguments: Arguments, factor: float | Array
) -> Array:
    """Return the model's output if what each branch reads, after its norm, is multiplied by a factor."""
    edit = {"*/input": lambda x: (x * factor).astype(x.dtype)} if config.layers else None
    return model.apply(params, config, jnp.asarray(inputs), edit=edit, **arguments)


def _embed_inputs(weights: Parameters, config: ModelConfig, inputs: Array) -> Array:
    return config.inputs.apply(weights, inputs, None, None, config.sizes)


def _output_and_gradients(
    params: Transformer,
    vectors: ModelInputs,
    config: ModelConfig,
    arguments: Arguments,
    counted: ModelInputs,
    tokens: ModelInputs,
) -> tuple[Array, Array, Transformer]:
    def value(params: Transformer, vectors: ModelInputs) -> tuple[Array, Array]:
        embedded_params, inputs = give_vectors(params, config, vectors, tokens)
        output = model.apply(embedded_params, config, inputs, **arguments)
        mask = counted.reshape(*counted.shape, *(1,) * (output.ndim - counted.ndim))
        return jnp.sin(jnp.where(mask, output, 0)).sum(), output

    (_, output), (by_params, by_vectors) = jax.value_and_grad(value, argnums=(0, 1), has_aux=True)(params, vectors)
    return output, by_vectors, by_params


def training_loss(params: Transformer, run: Run, batch: Batch, key: Array) -> Array:
    """Return the training loss."""
    return loss_of(params, run, batch, key)[0]


def one_step(state: TrainState, run: Run, batch: Batch) -> tuple[Metrics, Array]:
    """Return the metrics of a training step, and the output of the model before it."""
    return train_step(state, run, batch)[1], forward(state.params, run, batch).output


step = fast_jit(one_step)
apply = fast_jit(forward_pass)
apply_scaled = fast_jit(scaled_forward_pass)
embed = fast_jit(_embed_inputs)
probe = fast_jit(_output_and_gradients)
loss = fast_jit(training_loss)
loss_and_gradient: Callable[[Transformer, Run, Batch, Array], tuple[Array, Transformer]] = fast_jit(
    jax.value_and_grad(training_loss)
)
start_state = fast_jit(start)
