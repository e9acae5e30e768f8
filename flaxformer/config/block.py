"""Configuration of one block, for models whose layers differ."""

import dataclasses
from typing import Any, ClassVar

from flaxformer.components.attention import Attention
from flaxformer.components.branch import TokenMixer
from flaxformer.components.feed_forward import FeedForward
from flaxformer.components.norms import Norm, NormPlacement
from flaxformer.components.positions import Positions
from flaxformer.components.residuals import Residual
from flaxformer.core.paths import as_kind
from flaxformer.core.struct import Config, part


class Same(Config):
    """Value of a field of `Block` that is not given; the block then uses the field of the model."""

    is_abstract: ClassVar[bool] = True


SAME = Same()


class Block(Config):
    """One block of a pattern; a field that is not given has the value of the model.

    A class as a value stands for the model's component as that class: it keeps the fields that both have, such as the
    number of heads.

    positions: position scheme of the block's self-attention, in place of the model's.
    attention_norm: placement of the norms of its self-attention, where it differs from that of its other branches.
    """

    attention: TokenMixer | type[TokenMixer] | Same = part(SAME)
    cross_attention: Attention | type[Attention] | Same = part(SAME)
    feed_forward: FeedForward | type[FeedForward] | Same | None = part(SAME)
    norm: NormPlacement | Same = part(SAME)
    norm_kind: Norm | type[Norm] | Same = part(SAME)
    attention_norm: NormPlacement | Same = part(SAME, omit_default=True)
    residual: Residual | type[Residual] | Same = part(SAME)
    positions: Positions | type[Positions] | Same = part(SAME, omit_default=True)

    def like(self, model: object, path: str) -> "Block":
        """Return the block with components in place of classes, with the fields that they share with the model's.

        Args:
          model: the model config.
          path: of the block, for the message.

        Raises:
          UserError: a class with a required field that the model's component does not have.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        classes = {name: kind for name, kind in values.items() if isinstance(kind, type)}
        parts: dict[str, Config] = {
            name: as_kind(getattr(model, name), kind, f"{path}.{name}") for name, kind in classes.items()
        }
        return self.replace(**parts) if parts else self

    def changes(self) -> dict[str, Any]:
        """Return the given fields by the name of the model's field."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changes = {name: value for name, value in values.items() if not isinstance(value, Same)}
        if "positions" in changes:  # vectors that are added to the embeddings are the model's
            changes["attention_positions"] = changes.pop("positions")
        return changes


def without_classes(pattern: object, model: object) -> object:
    """Return a pattern with components in place of classes (`Block.like`); what is not a pattern, as it is."""
    if not isinstance(pattern, tuple | list) or not all(isinstance(block, Block) for block in pattern):
        return pattern
    return tuple(block.like(model, f"pattern.{number}") for number, block in enumerate(pattern))
