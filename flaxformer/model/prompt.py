"""Validation of the arguments of decoding."""

from typing import TypeGuard

import numpy as np
from jaxtyping import ArrayLike, Bool, Int

from flaxformer.config import ModelConfig
from flaxformer.model.call import ArrayIndex, PrefixInputs
from flaxformer.system.errors import UserError, quote


def check_prompt(
    config: ModelConfig,
    prompt: Int[ArrayLike, "B T"],
    valid: Bool[ArrayLike, "B T"] | None,
    steps: int,
    end: int | None,
    prefix_inputs: PrefixInputs,
) -> tuple[Int[np.ndarray, "B T"], Bool[np.ndarray, "B T"]]:
    """Check the arguments of `generate`, and return the prompt, with 0 at padding, and the booleans `valid`.

    Raises:
      UserError: an invalid argument.
    """
    if config.inputs.reads != "tokens" or config.head.predicts != "tokens":
        raise UserError(f"inputs are {config.inputs} and head is {config.head}; expected Tokens() and LanguageModel()")
    tokens = np.asarray(prompt)
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise UserError(f"prompt has shape {tokens.shape}; expected [batch, length] with at least one token")
    is_valid = np.ones(tokens.shape, bool) if valid is None else np.asarray(valid)
    if is_valid.shape != tokens.shape or is_valid.dtype != bool:
        raise UserError(
            f"valid has dtype {is_valid.dtype} and shape {is_valid.shape}; expected bool and {tokens.shape}"
        )
    if not is_valid.any(-1).all():
        raise UserError(f"row {is_valid.any(-1).argmin()} of the prompt is only padding; expected at least one token")
    check_ids("prompt", tokens, is_valid, config.vocabulary)
    _check_numbers(config, tokens.shape[1], steps, end)
    _check_prefix_inputs(config, len(tokens), prefix_inputs)
    return np.where(is_valid, tokens, 0).astype(np.int32), is_valid


def check_prompt_chunk(config: ModelConfig, chunk: int | None) -> None:
    """Check the number of tokens of a prompt that are read at a time.

    Raises:
      UserError: it is below 1, or the tokens of a prompt attend to later ones.
    """
    if chunk is None:
        return
    check_count("prompt_chunk", chunk)
    if config.mask_pattern == "prefix":
        raise UserError(
            f'prompt_chunk is {chunk} with mask_pattern "prefix", where all tokens of a prompt attend to each other; '
            "expected None"
        )


def check_ids(name: str, ids: np.ndarray, valid: np.ndarray, vocabulary: int) -> None:
    """Check that ids are integers below `vocabulary`, where they are not padding.

    Raises:
      UserError: they are not; the message has the name and the first place.
    """
    if not np.issubdtype(ids.dtype, np.integer):
        raise UserError(f"{name} has dtype {ids.dtype}; expected integers, since they are token ids")
    wrong = valid & ((ids < 0) | (ids >= vocabulary))
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise UserError(f"{name} has token {ids[place]} at {place}; expected ids from 0 to {vocabulary - 1}")


def check_count(name: str, value: object) -> None:
    """Check a number of tokens or beams.

    Raises:
      UserError: it is not a whole number, or is below 1.
    """
    if not _is_whole(value):
        raise UserError(f"{name} is {quote(value)}; expected a whole number, at least 1")
    if value < 1:
        raise UserError(f"{name} is {value}; expected at least 1")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_numbers(config: ModelConfig, length: int, steps: int, end: int | None) -> None:
    check_count("steps", steps)
    if end is not None and not (_is_whole(end) and 0 <= end < config.vocabulary):
        raise UserError(f"end is {quote(end)}; expected an id from 0 to {config.vocabulary - 1}")
    needed = length + steps - 1  # the last new token is not an input
    if config.max_length is not None and needed > config.max_length:
        raise UserError(
            f"a prompt of {length} tokens and {steps} steps need {needed} positions; "
            f"expected at most the model's max_length {config.max_length}"
        )


def _check_prefix_inputs(config: ModelConfig, rows: int, prefix_inputs: PrefixInputs) -> None:
    arrays = {
        name: np.asarray(x) for name, x in prefix_inputs.items() if x is not None and not isinstance(x, ArrayIndex)
    }
    for name, x in arrays.items():
        if x.shape[:1] != (rows,):
            raise UserError(f"{name} has shape {x.shape}; expected {rows} rows, one per prompt")
    encoder = config.encoder
    if "source" in arrays and encoder is not None and encoder.inputs.reads == "tokens":
        encoder_inputs = arrays["source"]
        source_valid = arrays.get("source_valid", np.ones(encoder_inputs.shape, bool))
        check_ids("source", encoder_inputs, source_valid, encoder.vocabulary)
