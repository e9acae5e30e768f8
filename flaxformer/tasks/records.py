"""Records with random access, such as those of `grain.sources` or ArrayRecord files, read on the host by index.

Training goes through the training records in epochs. The examples of step s are those at the places s · B …
s · B + B − 1 of all epochs, one after another; the record at place p of an epoch is π(p), where the permutation π of
the training records is a function of the key and the number of the epoch. So a batch is a function of (key, step), and
there is no iterator state to save.

π is a balanced Feistel network of `ROUNDS` rounds on the numbers below the next power of four, applied again while its
result is not the index of a record (Black and Rogaway 2002, section 5), which needs no memory and depends on no other
library's version.
"""

import hashlib
from typing import ClassVar, Protocol

import flax.struct
import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from flaxformer.core.struct import static
from flaxformer.system.errors import UserError
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch
from flaxformer.tasks.examples import sample_evenly, scale_weights
from flaxformer.tasks.host import HostSource

ROUNDS = 6
"""Rounds of the Feistel network."""
DIGESTED = 64
"""Number of records, evenly spaced, whose examples are in the fingerprint."""


class RandomAccess(Protocol):
    """Records by index, as the data sources of grain have them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> PyTree: ...


class Records(Task):
    """Base of tasks on records with random access: define `records`, `example`, `vocabulary` and `sequence_length`.

    version: name or version of the data, which identifies them beside their number and the examples that are digested.
    validation_tenths: of ten records in a row, the first so many are held out, for validation and test.

    Batches are gathered on the host and copied to the device in chunks, so that the data may be of any size.
    """

    is_abstract: ClassVar[bool] = True

    version: str = static("")
    validation_tenths: int = static(1, at_least=1, at_most=9)

    def records(self) -> RandomAccess:
        """Open and return the records, which have `len` and an index, such as `grain.sources.ArrayRecordDataSource`."""
        raise NotImplementedError(f"{type(self).__name__} does not define `records`")

    def example(self, record: PyTree) -> Batch:
        """Return the example of a record, a `Batch` of NumPy arrays without a batch axis, alike in shape for all."""
        raise NotImplementedError(f"{type(self).__name__} does not define `example`")

    def load(self) -> "RecordSource":
        records, name = self.records(), type(self).__name__
        if not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise UserError(f"{name}.records() is {type(records).__name__}; expected records with `len` and an index")
        source = RecordSource(task=self, records=records)
        if not source.training_count:
            raise UserError(f"{name}.records() has {len(records)} records; expected more than {self.validation_tenths}")
        return source

    def fingerprint(self) -> dict[str, object]:
        """Return the number of records, a digest of the examples of 64 evenly spaced ones, and `version`."""
        source, digest = self.load(), hashlib.sha256()
        count = len(source.records)
        for index in sample_evenly(count, min(count, DIGESTED))[0].tolist():
            for leaf in jax.tree.leaves(source.read_example(index)):
                array = np.ascontiguousarray(leaf)
                digest.update(f"{array.dtype.str} {array.shape}\n".encode() + array.tobytes())
        return {"records": count, "sample_sha256": digest.hexdigest(), "version": self.version}

    def notes(self) -> list[str]:
        source = self.load()
        held_out = len(source.records) - source.training_count
        rule = f"of ten in a row, the first {self.validation_tenths}" if self.validation_tenths > 1 else "every tenth"
        return [f"{source.training_count:,} records for training and {held_out:,} ({rule}) for validation and test."]


class RecordSource(HostSource):
    """Records, of which examples are made one by one."""

    task: Records = flax.struct.field(pytree_node=False)
    records: RandomAccess = flax.struct.field(pytree_node=False)

    @property
    def training_count(self) -> int:
        """Number of training records."""
        tens, last = divmod(len(self.records), 10)
        return tens * (10 - self.task.validation_tenths) + max(0, last - self.task.validation_tenths)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        self.check_not_traced(type(self.task).__name__, key, step)
        places = int(step) * self.task.batch_size + np.arange(self.task.batch_size)
        epochs, chosen = places // self.training_count, np.zeros_like(places)
        for epoch in np.unique(epochs).tolist():
            round_keys = np.asarray(jax.random.bits(jax.random.fold_in(key, epoch), (ROUNDS,)))
            within = places[epochs == epoch] % self.training_count
            chosen[epochs == epoch] = permuted(within, self.training_count, round_keys)
        tenths = self.task.validation_tenths
        return self._stack(chosen // (10 - tenths) * 10 + tenths + chosen % (10 - tenths))

    def evaluation(self) -> Batch:
        return self._held_out(self._held_out_records()[0])

    def test(self) -> Batch | None:
        """Return held-out records between those of the evaluation set; None if all are in it."""
        unused = self._held_out_records()[1]
        return self._held_out(unused) if unused.size else None

    def read_example(self, index: int) -> Batch:
        """Return the example of a record.

        Raises:
          UserError: it is not a `Batch`.
        """
        example = self.task.example(self.records[index])
        if not isinstance(example, Batch):
            kind = f"{type(self.task).__name__}.example of record {index}"
            raise UserError(f"{kind} is {type(example).__name__}; expected a Batch of NumPy arrays")
        return jax.tree.map(np.asarray, example)

    def _held_out_records(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the records of the evaluation set, and those of the test set."""
        count, size = len(self.records) - self.training_count, int(np.prod(self.task.evaluation_shape))
        places = np.arange(count) if count < 2 * size else sample_evenly(count, 2 * size)[0]
        is_evaluated = np.isin(np.arange(places.size), sample_evenly(places.size, size)[0])
        records = places // self.task.validation_tenths * 10 + places % self.task.validation_tenths
        return records[is_evaluated], records[~is_evaluated]

    def _held_out(self, records: np.ndarray) -> Batch:
        """Return examples in the shape of the evaluation set; if they are too few, each is scored once."""
        shape = self.task.evaluation_shape
        rows, weights = sample_evenly(records.size, int(np.prod(shape)))
        batch = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), self._stack(records[rows]))
        return scale_weights(batch, weights.reshape(shape))

    def _stack(self, indices: np.ndarray) -> Batch:
        """Return the examples of records as one batch.

        Raises:
          UserError: they differ in shape.
        """
        examples = [self.read_example(index) for index in indices.tolist()]
        forms = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), example) for example in examples]
        for index, form in zip(indices.tolist(), forms, strict=True):
            if form != forms[0]:
                where = f"{type(self.task).__name__}.example of records {indices[0]} and {index}"
                raise UserError(f"{where} differ: {forms[0]} and {form}; expected equal shapes (pad or cut them)")
        return jax.tree.map(lambda *leaves: np.stack(leaves), *examples)


def permuted(places: Int[np.ndarray, " n"], count: int, round_keys: np.ndarray) -> Int[np.ndarray, " n"]:
    """Return π(p) for places p of a permutation π of 0 … count − 1.

    Args:
      places: numbers below `count`.
      count: from 1 to 2⁶².
      round_keys: a key of 32 bits per round, which choose the permutation.
    """
    half = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))
    mask = (np.uint64(1) << half) - np.uint64(1)

    def encrypt(numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> half, numbers & mask
        for key in round_keys.astype(np.uint64):
            left, right = right, left ^ (_mix(right, key) & mask)
        return left << half | right

    result = encrypt(places.astype(np.uint64))
    while (is_outside := result >= np.uint64(count)).any():
        result[is_outside] = encrypt(result[is_outside])
    return result.astype(np.int64)


def _mix(numbers: np.ndarray, key: np.uint64) -> np.ndarray:
    """Return a hash of numbers and a key: the finalizer of SplitMix64 (Steele et al. 2014)."""
    x = (numbers ^ (key << np.uint64(32))) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
