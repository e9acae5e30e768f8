"""Checks of the arguments of decoding."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from flaxformer.config import ModelConfig
from flaxformer.model.call import PrefixInputs
from flaxformer.struct import UserError


def checked(
    config: ModelConfig, prompt: Any, valid: Any, steps: int, end: int | None, given: PrefixInputs
) -> tuple[Int[np.ndarray, "B T"], Bool[np.ndarray, "B T"]]:
    """The prompt, 0 where it is padding, and what of it is real, when all that a search is given is right."""
    if config.inputs.reads != "tokens" or config.head.predicts != "tokens":
        raise UserError(f"inputs are {config.inputs} and head is {config.head}; expected Tokens() and LanguageModel()")
    if unknown := set(given) - set(PrefixInputs.__annotations__):
        raise UserError(f"given are {sorted(unknown)}; expected only {', '.join(PrefixInputs.__annotations__)}")
    prompt = np.asarray(prompt)
    if prompt.ndim != 2 or 0 in prompt.shape:
        raise UserError(f"prompt is {prompt.shape}; expected [batch, length] with at least one token, such as a start")
    valid = np.ones(prompt.shape, bool) if valid is None else np.asarray(valid)
    if valid.shape != prompt.shape or valid.dtype != bool:
        raise UserError(f"valid is {valid.dtype} {valid.shape}; expected bool {prompt.shape}, as the prompt")
    if not valid.any(-1).all():
        raise UserError(f"row {valid.any(-1).argmin()} of the prompt is padding alone; expected at least one token")
    _check_ids("prompt", prompt, valid, config.vocabulary)
    _check_numbers(config, prompt.shape[1], steps, end)
    _check_given(config, len(prompt), given)
    return np.where(valid, prompt, 0).astype(np.int32), valid


def _check_ids(name: str, ids: np.ndarray, valid: np.ndarray, vocabulary: int) -> None:
    if not np.issubdtype(ids.dtype, np.integer):
        raise UserError(f"{name} has dtype {ids.dtype}; expected integers, the ids of tokens")
    wrong = valid & ((ids < 0) | (ids >= vocabulary))
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise UserError(f"{name} has token {ids[place]} at {place}; expected ids from 0 to {vocabulary - 1}")


def _check_numbers(config: ModelConfig, length: int, steps: int, end: int | None) -> None:
    if steps < 1:
        raise UserError(f"steps is {steps}; expected at least 1")
    if end is not None and not 0 <= end < config.vocabulary:
        raise UserError(f"end is {end}; expected an id from 0 to {config.vocabulary - 1}")
    needed = length + steps - 1  # the last token is said, and never read
    if config.max_length is not None and needed > config.max_length:
        raise UserError(
            f"a prompt of {length} tokens and {steps} steps read {needed} tokens; "
            f"expected at most the model's max_length {config.max_length}"
        )


def _check_given(config: ModelConfig, rows: int, given: PrefixInputs) -> None:
    arrays = {name: np.asarray(x) for name, x in given.items() if x is not None}
    for name, x in arrays.items():
        if x.shape[:1] != (rows,):
            raise UserError(f"{name} is {x.shape}; expected {rows} rows, as the prompt")
    encoder = config.encoder
    if "source" in arrays and encoder is not None and encoder.inputs.reads == "tokens":
        source = arrays["source"]
        _check_ids("source", source, arrays.get("source_valid", np.ones(source.shape, bool)), encoder.vocabulary)
