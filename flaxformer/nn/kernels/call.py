"""Arguments of one attention, by which a kernel is chosen and from which it computes."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float

from flaxformer.nn.masks import Mask


class AttentionCall(NamedTuple):
    """The arguments of `dot_product_attention`, with shapes that fit together."""

    query: Float[Array, "*batch T N d_k"]
    key: Float[Array, "*batch S K d_k"]
    value: Float[Array, "*batch S K d_v"]
    mask: Mask | Bool[Array, "..."] | None = None
    bias: Float[Array, "..."] | None = None
    scale: float | Float[Array, ""] = 1.0
    logit_cap: float | Float[Array, ""] | None = None

    @property
    def lengths(self) -> tuple[int, int]:
        """T and S."""
        return self.query.shape[-3], self.key.shape[-3]

    @property
    def widths(self) -> tuple[int, int]:
        """d_k and d_v."""
        return self.query.shape[-1], self.value.shape[-1]
