"""Transfers between a device and its host inside a compiled program, read from its text.

A training chunk should have none: the data are on the device or are arguments, and metrics are results. Each transfer
makes the device wait for the host.

Sources: openxla.org/xla/operation_semantics, of infeed, outfeed, send and recv; JAX writes a Python callback as a
custom call on a GPU, and as send and recv of the host on a TPU.
"""

import re

_SHAPE, _LAYOUT = r"\w+\[[\d,]*\]", r"[^}]*"
_ON_HOST = rf"\{{{_LAYOUT}S\(5\)\}}"
"""The layout of an array in the host's memory, which is space 5 of XLA."""
_FORMS = {
    "infeed": re.compile(r"= .*? infeed\("),
    "outfeed": re.compile(r"= .*? outfeed\("),
    "send to the host": re.compile(r"= .*? send\(.*is_host_transfer=true"),
    "receive from the host": re.compile(r"= .*? recv\(.*is_host_transfer=true"),
    "Python callback": re.compile(r'custom_call_target="[^"]*callback[^"]*"'),
    "copy to the host": re.compile(rf"= \(?{_SHAPE}{_ON_HOST}.* copy(-start)?\("),
    "copy from the host": re.compile(
        rf"= \({_SHAPE}(\{{(?!{_LAYOUT}S\(5\))[^}}]*\}})?, {_SHAPE}{_ON_HOST}.* copy-start\("
    ),
}
"""Forms of the operations, by their names in words."""


def host_transfers(text: str) -> dict[str, int]:
    """Return how many operations of a program exchange data with the host, by kind; empty if none does.

    Args:
      text: the program, as `jax.stages.Compiled.as_text` gives it.
    """
    counts = {name: sum(bool(form.search(line)) for line in text.splitlines()) for name, form in _FORMS.items()}
    return {name: count for name, count in counts.items() if count}
