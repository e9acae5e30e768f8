"""Byte-level language modelling: predict each byte of a text from the bytes before it."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from flaxformer.struct import UserError, static
from flaxformer.tasks.base import Batch, Source, Task
from flaxformer.tasks.corpus import Corpus, count_model_losses, standard_library, text_files


class TextTask(Task):
    """Windows of `length` bytes; training windows are random, evaluation windows are spread evenly and fixed."""

    length: int = static(32, at_least=1)

    @property
    def vocabulary(self) -> int:
        return 256

    @property
    def sequence_length(self) -> int:
        return self.length

    def corpus(self) -> Corpus:
        """The text itself."""
        raise NotImplementedError

    def load(self) -> "TextSource":
        corpus = self.corpus()
        for side, data in (("training", corpus.train), ("validation", corpus.validation)):
            if data.size <= self.length:
                expected = f"expected more than length {self.length}"
                raise UserError(f"{type(self).__name__}: the {side} text has {data.size} bytes; {expected}")
        return TextSource(jnp.asarray(corpus.train), jnp.asarray(corpus.validation), self)

    def fingerprint(self) -> dict[str, Any]:
        return self.corpus().fingerprint()

    def references(self) -> dict[str, float]:
        evaluation = jax.device_get(self.load().evaluation())
        return count_model_losses(self.corpus().train, evaluation.inputs, evaluation.targets)


class TextSource(Source):
    """Both sides of a text as bytes on the device."""

    train: UInt8[Array, "train_bytes"]
    validation: UInt8[Array, "validation_bytes"]
    task: TextTask = flax.struct.field(pytree_node=False)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        last = self.train.size - self.task.length
        starts = jax.random.randint(jax.random.fold_in(key, step), (self.task.batch_size,), 0, last)
        return self._windows(self.train, starts)

    def evaluation(self) -> Batch:
        shape = (self.task.evaluation_batches, self.task.batch_size)
        last = self.validation.size - self.task.length - 1
        return self._windows(
            self.validation, jnp.asarray(np.linspace(0, last, np.prod(shape)).astype(int)).reshape(shape)
        )

    def _windows(self, text: Array, starts: Int[Array, "*batch"]) -> Batch:
        places = jnp.expand_dims(jnp.arange(self.task.length + 1), range(starts.ndim))
        tokens = text[starts[..., None] + places].astype(jnp.int32)
        inputs, targets = tokens[..., :-1], tokens[..., 1:]
        return Batch(inputs=inputs, targets=targets, weights=jnp.ones(targets.shape, jnp.float32))


class StandardLibrary(TextTask):
    """The source code of the Python standard library, as installed on this machine: real text, nothing to download."""

    def corpus(self) -> Corpus:
        return standard_library()


class TextFiles(TextTask):
    """Your own text: a file is split at its end, a folder's files that match `pattern` by a hash of their names."""

    path: str = static()
    pattern: str = static("**/*.txt")
    validation_tenths: int = static(1, at_least=1, at_most=9)

    def corpus(self) -> Corpus:
        return text_files(self.path, self.pattern, self.validation_tenths)
