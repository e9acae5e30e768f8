"""Token mixers: components by which a token reads other tokens, such as attention."""

from typing import ClassVar

from flaxformer.components.branch import Branch


class TokenMixer(Branch):
    """Base of the token mixers.

    A token reads the tokens that `context.mask` allows; with `reads_mask = False`, itself and earlier tokens.
    """

    is_abstract: ClassVar[bool] = True
    reads_others: ClassVar[bool] = True
