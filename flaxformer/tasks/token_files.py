"""Language modelling on tokens that `flaxformer.data.prepare` wrote."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer.data.corpus import count_model_losses
from flaxformer.data.token_files import TokenFolder, open_tokens
from flaxformer.struct import static
from flaxformer.tasks.base import Source
from flaxformer.tasks.host import HostSource
from flaxformer.tasks.text import TextSource, TokenTask

RESIDENT = 2**30
"""Bytes of tokens and document starts up to which a text is kept on the device; the batches are the same either way."""
COUNTED = 2**24
"""Training tokens that the reference models are fitted to, from the start of the text."""


class TokenFiles(TokenTask):
    """A prepared text: the folder `path`, whose data.json tells the vocabulary.

    pack: "none", windows run on from one document into the next; or "documents", a token attends within its own
      document, its position counts from that document's start (or the window's, if it began before), and the first
      token of a document is not asked for. Windows are full either way: nothing is padded.

    A text of up to 1 GiB is kept on the device. A larger one stays in its file (`tasks.host`), which a training job
    reads ahead and a study refuses.
    """

    path: str = static()
    pack: str = static("none", choices=("none", "documents"))

    @property
    def folder(self) -> TokenFolder:
        """The folder, opened and checked once."""
        return open_tokens(self.path).holding(pairs=False)

    @property
    def vocabulary(self) -> int:
        return self.folder.vocabulary

    @property
    def packs_documents(self) -> bool:
        return self.pack == "documents"

    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        return self.folder.train, self.folder.validation

    def load(self) -> Source:
        train, validation = self.checked_tokens()
        packed, folder = self.pack == "documents", self.folder
        starts = [folder.train_documents, folder.validation_documents] if packed else [None, None]
        kept = [train, validation, *starts]
        if sum(array.nbytes for array in kept if array is not None) > RESIDENT:
            return HostSource(folder=folder, task=self, packed=packed)
        narrow = [None if array is None else jnp.asarray(array.astype(np.int32)) for array in starts]
        return TextSource(jnp.asarray(train), jnp.asarray(validation), self, *narrow)

    def fingerprint(self) -> dict[str, Any]:
        return self.folder.fingerprint()

    def references(self) -> dict[str, float]:
        """Fitted to the first 2^24 training tokens; of packed documents, over the targets that are scored."""
        evaluation = jax.device_get(self.load().evaluation())
        scored = evaluation.weights > 0
        train = self.folder.train[:COUNTED]
        return count_model_losses(train, evaluation.inputs[scored], evaluation.targets[scored], self.vocabulary)
