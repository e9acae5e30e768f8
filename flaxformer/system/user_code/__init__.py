"""Identity of user code: digests of all code outside installed packages that can change a result."""

from typing import TYPE_CHECKING

from flaxformer.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from flaxformer.system.user_code.search import code_digests
    from flaxformer.system.user_code.source import (
        copy_sources,
        is_unchanged_copy,
        path_of_copy,
        remember_sources,
        user_modules,
    )

__all__ = [
    "code_digests",
    "copy_sources",
    "is_unchanged_copy",
    "path_of_copy",
    "remember_sources",
    "user_modules",
]

__getattr__ = lazy_names(
    __name__,
    {
        "search": ("code_digests",),
        "source": ("copy_sources", "is_unchanged_copy", "path_of_copy", "remember_sources", "user_modules"),
    },
)
