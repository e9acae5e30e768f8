"""Identity of user code: digests of all code outside installed packages that can change a result."""

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
