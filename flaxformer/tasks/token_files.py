"""Language modelling on tokens that `flaxformer.data.prepare` wrote."""

import itertools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from flaxformer.core.struct import static
from flaxformer.data.corpus import count_model_losses
from flaxformer.data.token_files import TextSize, TokenFolder, open_tokens
from flaxformer.data.tokenizer import check_restored, read_tokenizer
from flaxformer.system.remembered import remembered
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.host import HostSource
from flaxformer.tasks.text import (
    COUNTED,
    TextSource,
    TokenTask,
    evaluation_starts,
    random_starts,
    test_windows,
    windows,
)

RESIDENT = 2**30
"""Size in bytes, of tokens and document starts, up to which a text is copied to the device; batches do not depend on
it."""


class TokenFiles(TokenTask):
    """Language modelling on a prepared text, in the folder `path`.

    pack: "none" ignores the borders of documents. With "documents", tokens attend only to their own document, positions
      count from the start of the document (or of the window, if the document began before it), and the first token of a
      document is not scored. Windows are full in both cases, without padding.

    A text of up to 1 GiB is copied to the device. Of a larger one, which stays in its file, studies and jobs copy the
    batches of some steps at a time (`tasks.host`).
    """

    path: str = static()
    pack: str = static("none", choices=("none", "documents"))

    @property
    def folder(self) -> TokenFolder:
        """The folder, which is opened and checked once."""
        return open_tokens(self.path).require(pairs=False)

    @property
    def vocabulary(self) -> int:
        return self.folder.vocabulary

    @property
    def packs_documents(self) -> bool:
        return self.pack == "documents"

    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        return self.folder.train, self.folder.validation

    def validation_text(self) -> TextSize:
        return _validation_text(self.folder)

    def load(self) -> Source:
        train, validation = self.checked_tokens()
        folder = self.folder
        starts = [folder.train_documents, folder.validation_documents] if self.packs_documents else [None, None]
        arrays = [train, validation, *starts]
        if sum(array.nbytes for array in arrays if array is not None) > RESIDENT:
            return MappedText(folder=folder, task=self, packed=self.packs_documents)
        narrow = [None if array is None else jnp.asarray(array.astype(np.int32)) for array in starts]
        return TextSource(jnp.asarray(train), jnp.asarray(validation), self, *narrow)

    def fingerprint(self) -> dict[str, object]:
        return self.folder.fingerprint()

    def references(self) -> dict[str, float]:
        """Return losses of unigram and bigram models, fitted to the first 2²⁴ training tokens, at scored targets."""
        evaluation = jax.device_get(self.load().evaluation())
        scored = evaluation.weights > 0
        train = self.folder.train[:COUNTED]
        return count_model_losses(train, evaluation.inputs[scored], evaluation.targets[scored], self.vocabulary)


@remembered
def _validation_text(folder: TokenFolder) -> TextSize:
    """Return the size and the digest of the validation text of a folder, which its tokens restore."""
    text, path = folder.text_size("validation"), folder.tokenizer_path
    bounds = itertools.pairwise(folder.validation_documents)
    documents = (folder.validation[first:last] for first, last in bounds)
    check_restored(read_tokenizer(path), documents, text["sha256"], str(path))
    return text


class MappedText(HostSource):
    """Both sides of a memory-mapped text, with the same windows as `TextSource`, made by NumPy."""

    folder: TokenFolder = flax.struct.field(pytree_node=False)
    task: TokenTask = flax.struct.field(pytree_node=False)
    packed: bool = flax.struct.field(pytree_node=False, default=False)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        self.check_not_traced(type(self.task).__name__, key, step)
        starts = random_starts(np, key, step, self.task, self.folder.train.size)
        documents = self.folder.train_documents if self.packed else None
        return windows(np, self.folder.train, documents, starts, self.task.length)

    def evaluation(self) -> Batch:
        starts = evaluation_starts(np, self.task, self.folder.validation.size)
        documents = self.folder.validation_documents if self.packed else None
        return windows(np, self.folder.validation, documents, starts, self.task.length)

    def test(self) -> Batch | None:
        """Return the test set of `TextSource`."""
        documents = self.folder.validation_documents if self.packed else None
        return test_windows(np, self.folder.validation, documents, self.task)
