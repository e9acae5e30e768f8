"""Fill-in-the-middle: some windows of a text are cut in three, and their middle is moved to the end.

    prefix middle suffix → ⟨pre⟩ prefix ⟨suf⟩ suffix ⟨mid⟩ middle ⟨end⟩ (PSM), or
    ⟨pre⟩ ⟨suf⟩ suffix ⟨mid⟩ prefix middle ⟨end⟩ (SPM)

Family: objectives
Source: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle", arXiv:2207.14255; its
abstract and descriptions of the two orders were read. Both cuts are uniform over the tokens of a window here, where the
paper prefers characters.
Claim: with up to 90% of the documents transformed, the loss from left to right is as without, and infilling is learned.
Cost: four tokens per window and in the vocabulary.
Verified: a loop over windows in Python, from the tokens before and after; the shares of both orders.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from flaxformer import Batch, Corrupted, static

ADDED = 4


class FillInTheMiddle(Corrupted):
    """Next tokens of windows, of which a share `rate` is cut in three and rearranged.

    ⟨pre⟩, ⟨suf⟩, ⟨mid⟩ and ⟨end⟩ are the ids after the text's. A window that is not rearranged has four more ⟨end⟩
    behind it, which are not scored.

    rate: share of the rearranged windows.
    suffix_first: share of them in the order SPM; the others are in the order PSM.
    """

    rate: float = static(0.9, at_least=0, at_most=1)
    suffix_first: float = static(0.5, at_least=0, at_most=1)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.packs_documents:
            yield "text packs documents; expected whole windows, since a cut moves tokens from one to another"

    @property
    def start(self) -> int:
        """Id of ⟨pre⟩; those of ⟨suf⟩, ⟨mid⟩ and ⟨end⟩ follow."""
        return self.text.vocabulary

    @property
    def vocabulary(self) -> int:
        return self.text.vocabulary + ADDED

    @property
    def sequence_length(self) -> int:
        return self.text.length + ADDED - 1

    def corrupt(self, key: Array, window: Int[Array, "length"]) -> Batch:
        cut_key, rate_key, order_key = jax.random.split(key, 3)
        length = window.size
        first, second = jnp.sort(jax.random.randint(cut_key, (2,), 0, length + 1))
        is_moved = jax.random.uniform(rate_key) < self.rate
        is_suffix_first = jax.random.uniform(order_key) < self.suffix_first
        # place in the result of each token of the window, then of the four others
        places = jnp.arange(length)
        part = (places >= first).astype(jnp.int32) + (places >= second)  # 0 prefix, 1 middle, 2 suffix
        after_suffix = length - second
        psm = places + jnp.array([1, 2, 2])[part] + jnp.where(part == 1, after_suffix + 1, 0)
        psm = psm - jnp.where(part == 2, second - first, 0)
        spm = jnp.where(part == 2, places - second + 2, places + after_suffix + 3)
        moved = jnp.where(is_suffix_first, spm, psm)
        psm_marks = jnp.stack([0, first + 1, first + 2 + after_suffix, length + 3])
        spm_marks = jnp.stack([0, 1, 2 + after_suffix, length + 3])
        marks = jnp.where(is_suffix_first, spm_marks, psm_marks)
        rearranged = jnp.zeros(length + ADDED, window.dtype).at[moved].set(window)
        rearranged = rearranged.at[marks].set((self.start + jnp.arange(ADDED)).astype(window.dtype))
        plain = jnp.concatenate([window, jnp.full(ADDED, self.start + ADDED - 1, window.dtype)])
        tokens = jnp.where(is_moved, rearranged, plain)
        scored = is_moved | (jnp.arange(1, length + ADDED) < length)
        return Batch(inputs=tokens[:-1], targets=tokens[1:], weights=scored.astype(jnp.float32))


BYTES = 256
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "fill in the middle": {"task": FillInTheMiddle, "model.vocabulary": BYTES + ADDED}
}
