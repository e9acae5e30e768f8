"""Result of a forward pass, with its intermediates."""

from collections.abc import Iterator

from jaxtyping import Array, Float, PyTree

from flaxformer.components.component import Aux
from flaxformer.components.heads import OutputProjection
from flaxformer.core.pytree import Node
from flaxformer.model.blocks import BlockIntermediates
from flaxformer.model.cache import Cache


class Intermediates(Node):
    """Intermediates of a model: the embedded inputs, each block's branches, the head's input, and the encoder's."""

    embedded: Float[Array, "*batch T D"]
    blocks: tuple[BlockIntermediates, ...]
    final: Float[Array, "*batch T D"]
    encoder: "Intermediates | None" = None


class ModelOutput(Node):
    """Result of a forward pass."""

    output: Array
    """Output of the head, such as logits; a compiled program that does not read it does not compute it."""
    aux: Aux = Aux()
    """Losses, statistics and changed weights of the components."""
    cache: Cache | None = None
    """Cache with the new tokens, if one was given."""
    intermediates: Intermediates | None = None
    """Intermediates, if asked for."""
    projection: OutputProjection | None = None
    """Last step from features to `output`, if it can be computed for some of the tokens at a time."""

    def at_points(self) -> dict[str, PyTree]:
        """Return the activation at every point, by its path, in the order of computation.

        Raises:
          ValueError: the intermediates were not asked for.
        """
        if self.intermediates is None:
            raise ValueError("the output has no intermediates; expected a run with return_intermediates=True")
        return dict(_points(self.intermediates, "")) | {"output": self.output}


def _points(intermediates: Intermediates, stack: str) -> Iterator[tuple[str, PyTree]]:
    if intermediates.encoder is not None:
        yield from _points(intermediates.encoder, f"{stack}encoder/")
    yield f"{stack}embedded", intermediates.embedded
    for layer, block in enumerate(intermediates.blocks):
        for branch in ("attention", "cross_attention", "feed_forward"):
            activations = getattr(block, branch)
            for name, x in ({} if activations is None else activations.at_points()).items():
                yield f"{stack}blocks/{layer}/{branch}/{name}", x
    yield f"{stack}final", intermediates.final
