"""Bytes that decoding reads from memory."""

from sizes import Size


def step_bytes(size: Size, prompt: int, steps: int) -> float:
    """Bytes that one step reads: every weight in a product once, and the keys and values so far (their mean)."""
    weights = 12 * size.layers * size.width**2 + size.width * size.vocabulary
    cached = 2 * size.layers * size.width * size.batch * (prompt + (steps + 1) / 2)
    return (weights + cached) * {"float32": 4, "bfloat16": 2}[size.precision]
