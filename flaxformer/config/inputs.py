"""What a model reads: tokens, vectors, or the patches of an image."""

from collections.abc import Iterator
from typing import ClassVar

from flaxformer.struct import Config, leaf, static


class Inputs(Config):
    """Base of the kinds of input."""

    has_table: ClassVar[bool] = False
    has_types: ClassVar[bool] = False
    has_class_token: ClassVar[bool] = False
    trained: ClassVar[bool] = True
    token_types: ClassVar[int | None] = None
    d_input: ClassVar[int] = 0
    """Numbers in one vector that a matrix maps to the model's width; 0 without a matrix."""

    has_matrix = property(lambda self: self.d_input > 0)


class Tokens(Inputs):
    """Token ids, each with a row of an embedding table, x = D^scale_exponent · E[token].

    lookup: by index ("gather") or as the product of one-hot vectors and the table: equal numbers.
    scale_exponent: None for none, ½ for the √D of Vaswani et al. 2017, section 3.4.
    frozen: the table stays as it was drawn or loaded.
    shared: an encoder reads the table of its decoder.
    token_types: how many kinds of token have an added vector of their own (BERT's segments); None for no such vectors.
    """

    lookup: str = static("gather", choices=("gather", "one-hot"))
    scale_exponent: float | None = leaf(None)
    frozen: bool = static(False)
    shared: bool = static(False)
    token_types: int | None = static(None, at_least=1)  # type: ignore[misc]

    has_table = property(lambda self: not self.shared)
    has_types = property(lambda self: self.token_types is not None)
    trained = property(lambda self: not self.frozen)


class Vectors(Inputs):
    """Vectors of `width` numbers, mapped to the model's width by a matrix and a bias."""

    width: int = static(at_least=1)

    d_input = property(lambda self: self.width)


class Stream(Inputs):
    """Vectors of the model's own width, taken as they are: no weights."""


class Patches(Inputs):
    """Images [height, width, channels], cut into squares of `size`, row by row; each is one vector.

    class_token: a learned vector stands before the patches (Dosovitskiy et al. 2021).
    """

    height: int = static(at_least=1)
    width: int = static(at_least=1)
    size: int = static(at_least=1)
    channels: int = static(1, at_least=1)
    class_token: bool = static(False)

    has_class_token = property(lambda self: self.class_token)
    d_input = property(lambda self: self.size * self.size * self.channels)

    def problems(self) -> Iterator[str]:
        for name in ("height", "width"):
            if getattr(self, name) % self.size:
                yield f"{name} is {getattr(self, name)}; expected a multiple of the patch size {self.size}"

    @property
    def count(self) -> int:
        """Tokens that the model sees."""
        return (self.height // self.size) * (self.width // self.size) + self.class_token
