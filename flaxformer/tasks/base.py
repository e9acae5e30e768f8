"""Task: describes what a model learns; its `Source` holds the data and gives `batch(key, step)`."""

from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.model.call import ForwardInputs
from flaxformer.nn.masks import Segments
from flaxformer.pytree import Node
from flaxformer.struct import Config, static


class Batch(Node):
    """Inputs and targets of a model; None for what a task does not give.

    inputs are tokens [*batch, T], vectors [*batch, T, width] or images [*batch, height, width, channels]; a language
    model's targets are the tokens after each input: after inputs[..., :t + 1] comes targets[..., t].
    """

    inputs: Array
    targets: Array
    weights: Float[Array, "..."]
    """Weight of each target in the loss; 0 is not scored."""
    valid: Bool[Array, "*batch T"] | None = None
    """False at padding."""
    prefix: Int[Array, "*batch"] | None = None
    """Number of tokens at the start that are given, not predicted: the prefix that a prefix-LM sees whole."""
    source: Array | None = None
    """Input of an encoder."""
    source_valid: Bool[Array, "*batch S"] | None = None
    segments: Int[Array, "*batch T"] | None = None
    """Number of the document that each token belongs to, where several are packed: tokens attend within their own."""
    positions: Int[Array, "*batch T"] | None = None
    """Each token's position; 0, 1, 2 … where a task gives none."""

    @property
    def given(self) -> ForwardInputs:
        """Arguments of `apply` beside the inputs."""
        given: ForwardInputs = {
            "valid": self.valid,
            "prefix": self.prefix,
            "source": self.source,
            "source_valid": self.source_valid,
        }
        if self.segments is not None:
            given["mask"] = Segments(self.segments, self.segments)
        if self.positions is not None:
            given["positions"] = self.positions
        return given


AnyBatch = Batch | tuple[Batch, ...]
"""Data of a training step: a batch, or the parts of one, each padded to a length of its own."""


def concat_parts(batch: AnyBatch) -> Batch:
    """The parts as one batch [B, T], in their order, each padded to the longest with what is not valid and not scored.

    A batch without parts is as it is.
    """
    if isinstance(batch, Batch):
        return batch

    def concat(*parts: Array) -> Array:
        longest = np.max([x.shape[1:] for x in parts], axis=0)
        return jnp.concatenate([jnp.pad(x, [(0, 0), *((0, n) for n in longest - x.shape[1:])]) for x in parts])

    return jax.tree.map(concat, *batch)


class Source(Node):
    """The data of a task, on the device; a pytree, so that it is an argument of compiled functions."""

    def batch(self, key: Array, step: int | Int[Array, ""]) -> AnyBatch:
        """Training batch number `step` of the stream `key`: a pure function, with no iterator to save."""
        raise NotImplementedError(f"{type(self).__name__} does not define `batch`")

    def evaluation(self) -> Batch:
        """The fixed evaluation set, [batches, B, T]: the same for every model, seed and step."""
        raise NotImplementedError(f"{type(self).__name__} does not define `evaluation`")


class Task(Config):
    """Base of every task; the fields that all of them share.

    Every field of a task is static: the runs of a group, which differ in leaves alone, share one `Source`.
    """

    is_abstract: ClassVar[bool] = True

    batch_size: int = static(16, at_least=1)
    evaluation_batches: int = static(16, at_least=1)

    targets_in_inputs: ClassVar[bool] = True
    """True if tokens that are asked for stand among the later inputs, where a model that sees all would find them."""

    @property
    def vocabulary(self) -> int:
        """Number of different tokens; 0 for a task without tokens."""
        raise NotImplementedError(f"{type(self).__name__} does not define `vocabulary`")

    @property
    def sequence_length(self) -> int:
        """T, the tokens that the model (the decoder, where there is an encoder) reads in one sequence."""
        raise NotImplementedError(f"{type(self).__name__} does not define `sequence_length`")

    @property
    def source_length(self) -> int:
        """S, the tokens that an encoder reads; 0 for a task that gives no source."""
        return 0

    @property
    def packs_documents(self) -> bool:
        """True if a sequence may hold several documents, each to be read by itself (`Batch.segments`)."""
        return False

    def tokens_read(self, model: ModelConfig) -> int:
        """Tokens that a model reads of one example, by its encoder too."""
        return self.sequence_length + self.source_length

    def tokens_per_batch(self, model: ModelConfig) -> int:
        """Tokens that a model reads of one training batch, padding among them."""
        return self.batch_size * self.tokens_read(model)

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        """Yield why a model cannot learn this task; a task that is not language modelling overrides it."""
        yield from self._token_problems("model", model)
        if model.head.predicts != "tokens":
            yield f"model.head is {model.head}; expected LanguageModel(), for the task asks for tokens"
        if self.targets_in_inputs and model.mask_pattern == "bidirectional":
            yield 'model.mask_pattern is "bidirectional"; expected "causal" or "prefix": the inputs hold the answers'
        if self.packs_documents:
            for path, mixer in model.mixers_without_mask.items():
                kind = type(mixer).__name__
                yield f"model.{path} is {kind}, which reads no mask; expected a mixer that can keep documents apart"
        yield from self.length_problems(model)
        yield from self.source_problems(model)

    def _token_problems(self, where: str, model: ModelConfig) -> Iterator[str]:
        if model.inputs.reads != "tokens":
            yield f"{where}.inputs is {model.inputs}; expected Tokens(), which the task gives"
        if model.vocabulary < self.vocabulary:
            yield f"{where}.vocabulary is {model.vocabulary}; expected at least the task's {self.vocabulary} tokens"

    def length_problems(self, model: ModelConfig) -> Iterator[str]:
        """Yield why the sequences are too long for a model."""
        yield from _too_long("model", model, self.sequence_length)

    def source_problems(self, model: ModelConfig) -> Iterator[str]:
        """Yield why a model cannot read the task's source, or needs one that the task does not give."""
        encoder = model.encoder
        if model.reads_memory and encoder is None:
            yield f"model.d_memory is {model.d_memory}; expected None, for no task gives a memory"
        if encoder is not None and not self.source_length:
            yield "model.encoder is given; expected None, for the task gives no source"
        if encoder is None and self.source_length:
            yield "model.encoder is None; expected one, as model.with_encoder() makes, to read the task's source"
        if encoder is not None and self.source_length:
            yield from self._token_problems("model.encoder", encoder)
            yield from _too_long("model.encoder", encoder, self.source_length)

    def load(self) -> Source:
        """Read the data, once, onto the device."""
        raise NotImplementedError(f"{type(self).__name__} does not define `load`")

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the data on this machine, beyond the task's own fields."""
        return {}

    def references(self) -> dict[str, float]:
        """Losses of simple models on the evaluation set (nats or squared error), to read a loss against."""
        return {}


def _too_long(where: str, model: ModelConfig, length: int) -> Iterator[str]:
    if model.max_length is not None and model.max_length < length:
        yield f"{where}.positions.max_length is {model.max_length}; expected at least the task's {length} tokens"
