"""Parts that all commands share: exit codes, and the declaration of an option."""

from typing import Any

import tyro

FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130


def option(metavar: str, default: str, words: str, name: str | None = None) -> Any:
    """An option's place-holder, default and meaning, as --help prints them."""
    return tyro.conf.arg(name=name, metavar=metavar, help=words, help_behavior_hint=f"(default: {default})")
