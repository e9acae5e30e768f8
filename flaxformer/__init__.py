"""Transformer ablations in JAX: a question is one short typed file, and its answer comes with its uncertainty."""

SEMANTICS = 2
"""Bumped when the same config gives other numbers on purpose; results of different semantics are never mixed."""

__version__ = "0.1.0"
