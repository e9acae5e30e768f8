"""Block: the choices of a model that may differ from layer to layer."""

import dataclasses
from typing import Any, ClassVar

from flaxformer.parts.attention import Attention
from flaxformer.parts.feed_forward import FeedForward
from flaxformer.parts.mixers import TokenMixer
from flaxformer.parts.norms import Norm, NormPlacement
from flaxformer.parts.residuals import Residual
from flaxformer.struct import Config, part


class Same(Config):
    """In a `Block`: the model's own."""

    is_abstract: ClassVar[bool] = True


SAME: Any = Same()


class Block(Config):
    """Choices of one block of a pattern; those that are not given are the model's."""

    attention: TokenMixer | Same = part(SAME)
    cross_attention: Attention | Same = part(SAME)
    feed_forward: FeedForward | Same | None = part(SAME)
    norm: NormPlacement | Same = part(SAME)
    norm_kind: Norm | Same = part(SAME)
    residual: Residual | Same = part(SAME)

    def changes(self) -> dict[str, Any]:
        """The fields that are given."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if not isinstance(value, Same)}
