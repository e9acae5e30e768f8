"""Form of a mask as kernels know it: a band around the diagonal, padding, and segments.

>>> structure(Causal() & Window(8) & Padding(valid))
Structure(least=0, greatest=7, valid=valid, is_whole=True)
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from flaxformer.nn.masks import Both, Causal, Either, Explicit, Mask, Padding, Prefix, Segments, Window


class Structure(NamedTuple):
    """The conjunction of a band and of padding and segments.

    Args:
      least, greatest: query t may attend to key s only if least ≤ t − s ≤ greatest; None for no bound.
      lengths: only to the first lengths[b] keys.
      valid: only to keys where this is True.
      segments: of queries and keys; only to keys of its own segment.
      is_whole: False if the mask allows less than all of these together.
    """

    least: int | None = None
    greatest: int | None = None
    lengths: Int[Array, "*batch"] | None = None
    valid: Bool[Array, "*batch S"] | None = None
    segments: tuple[Int[Array, "*batch T"], Int[Array, "*batch S"]] | None = None
    is_whole: bool = True

    @property
    def is_causal(self) -> bool:
        """True if no key follows the query."""
        return self.least is not None and self.least >= 0

    @property
    def is_static(self) -> bool:
        """True if the band is all of the mask."""
        return self.is_whole and self.lengths is None and self.valid is None and self.segments is None

    def reaches(self, queries: tuple[int, int], keys: tuple[int, int]) -> bool:
        """True unless the band excludes every query and key with first ≤ index < end."""
        nearest, farthest = queries[0] - (keys[1] - 1), queries[1] - 1 - keys[0]
        after = self.least is None or farthest >= self.least
        return after and (self.greatest is None or nearest <= self.greatest)

    def describe(self) -> str:
        """Return the mask in words."""
        parts = [
            "causal" if self.is_causal else "" if self.least is None else "band",
            "" if self.greatest is None else f"window {self.greatest + 1}",
            "" if self.lengths is None else "padding by lengths",
            "" if self.valid is None else "padding",
            "" if self.segments is None else "segments",
            "" if self.is_whole else "explicit",
        ]
        return " & ".join(part for part in parts if part) or "no mask"


def structure(mask: Mask | Array | None) -> Structure:
    """Return the structure of a mask, as far as it has one."""
    match mask:
        case None:
            return Structure()
        case Causal(offset=int(offset)):
            return Structure(least=-offset)
        case Window(width=int(width), query=None, key=None):
            return Structure(least=1 - width, greatest=width - 1)
        case Prefix(length=length):
            return Structure(lengths=length)
        case Padding(valid=valid):
            return Structure(valid=valid)
        case Segments(query=query, key=key):
            return Structure(segments=(query, key))
        case Both(first=first, second=second):
            return _both(structure(first), structure(second))
        case Either(first=first, second=second):
            return _hull(structure(first), structure(second))
    return Structure(is_whole=False)


def has_tiles(mask: Mask | Array | None) -> bool:
    """True if a mask can be computed part by part."""
    if isinstance(mask, Both | Either):
        return has_tiles(mask.first) and has_tiles(mask.second)
    return not isinstance(mask, Mask) or type(mask).tile is not Mask.tile


def as_mask(mask: Mask | Array | None) -> Mask | None:
    """Return a mask that was given as booleans as a `Mask`."""
    if mask is None or isinstance(mask, Mask):
        return mask
    if mask.dtype != bool:
        raise ValueError(f"mask has dtype {mask.dtype}; expected bool, True = attend (numbers belong in bias)")
    return Explicit(jnp.asarray(mask))


def _both(first: Structure, second: Structure) -> Structure:
    """Return the intersection of two masks."""
    lengths = _merge(jnp.minimum, first.lengths, second.lengths)
    valid = _merge(jnp.logical_and, first.valid, second.valid)
    is_lost = first.segments is not None and second.segments is not None
    for array, other, merged in ((first.lengths, second.lengths, lengths), (first.valid, second.valid, valid)):
        is_lost = is_lost or (array is not None and other is not None and merged is None)
    return Structure(
        least=_bound(max, first.least, second.least),
        greatest=_bound(min, first.greatest, second.greatest),
        lengths=lengths,
        valid=valid,
        segments=first.segments or second.segments,
        is_whole=first.is_whole and second.is_whole and not is_lost,
    )


def _merge(operation: Callable[[Array, Array], Array], first: Array | None, second: Array | None) -> Array | None:
    """Return two arrays combined, or the only one; None if they differ in rank."""
    if first is None or second is None:
        return second if first is None else first
    return operation(first, second) if first.ndim == second.ndim else None


def _hull(first: Structure, second: Structure) -> Structure:
    """Return a band around the union of two masks."""
    least, greatest = (
        None if a is None or b is None else choose(a, b)
        for choose, a, b in ((min, first.least, second.least), (max, first.greatest, second.greatest))
    )
    return Structure(least=least, greatest=greatest, is_whole=False)


def _bound(choose: Callable[[Iterable[int]], int], first: int | None, second: int | None) -> int | None:
    """Return the narrower of two bounds."""
    known = [bound for bound in (first, second) if bound is not None]
    return choose(known) if known else None
