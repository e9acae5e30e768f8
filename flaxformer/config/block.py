"""Configuration of one block, for models whose layers differ."""

import dataclasses
from typing import Any, ClassVar

from flaxformer.components.attention import Attention
from flaxformer.components.feed_forward import FeedForward
from flaxformer.components.mixers import TokenMixer
from flaxformer.components.norms import Norm, NormPlacement
from flaxformer.components.positions import Positions
from flaxformer.components.residuals import Residual
from flaxformer.core.struct import Config, part


class Same(Config):
    """Value of a field of `Block` that is not given; the block then uses the field of the model."""

    is_abstract: ClassVar[bool] = True


SAME = Same()


class Block(Config):
    """One block of a pattern; a field that is not given has the value of the model.

    positions: position scheme of the block's self-attention, in place of the model's.
    """

    attention: TokenMixer | Same = part(SAME)
    cross_attention: Attention | Same = part(SAME)
    feed_forward: FeedForward | Same | None = part(SAME)
    norm: NormPlacement | Same = part(SAME)
    norm_kind: Norm | Same = part(SAME)
    residual: Residual | Same = part(SAME)
    positions: Positions | Same = part(SAME, omit_default=True)

    def changes(self) -> dict[str, Any]:
        """Return the given fields by the name of the model's field."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changes = {name: value for name, value in values.items() if not isinstance(value, Same)}
        if "positions" in changes:  # vectors that are added to the embeddings are the model's
            changes["attention_positions"] = changes.pop("positions")
        return changes
