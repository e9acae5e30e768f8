"""Memory that decoding needs, compared with that of this machine before any is allocated."""

import jax
import numpy as np

from flaxformer.config import ModelConfig
from flaxformer.model import Transformer
from flaxformer.model.call import PrefixInputs
from flaxformer.model.decoding import cache_capacity
from flaxformer.model.prefill import read_prompt
from flaxformer.model.transformer import new_cache
from flaxformer.system.errors import UserError
from flaxformer.training.memory import machine_bytes, size


def check_decoding(
    params: Transformer, model: ModelConfig, length: int, steps: int, beams: int = 1, inputs: PrefixInputs | None = None
) -> None:
    """Refuse a prompt, a number of new tokens or of beams whose keys, values or attention do not fit into memory.

    Args:
      params, model: the weights and their config.
      length: number of tokens of the prompt.
      steps: number of new tokens.
      beams: number of hypotheses, each with a cache of its own.
      inputs: source and source_valid of one row, for an encoder-decoder.

    Raises:
      UserError: they need more memory than there is.
    """
    inputs, capacity = inputs or {}, cache_capacity(model, length + steps)
    cache = jax.eval_shape(lambda params: new_cache(params, model, (1,), capacity, **inputs), params)
    needs = {"keys and values": beams * _bytes(cache), "the prompt's attention": 0}
    heads = max((getattr(block.attention, "heads", 1) for block in model.block_configs), default=1)
    if 4 * heads * length**2 > machine_bytes() // 8:  # the compiler tells whether it keeps the whole of it
        needs["the prompt's attention"] = _bytes_of_prompt(params, model, length, inputs)
    if sum(needs.values()) > machine_bytes():
        listed = ", ".join(f"{size(count)} for {what}" for what, count in needs.items() if count)
        asked = f"{length:,} tokens of prompt and {steps:,} of output" + (f" with {beams:,} beams" if beams > 1 else "")
        raise UserError(
            f"{asked} need at least {size(sum(needs.values()))} of memory ({listed}) and there are "
            f"{size(machine_bytes())}; expected a shorter prompt, or fewer tokens or beams"
        )


def _bytes(tree: object) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _bytes_of_prompt(params: Transformer, model: ModelConfig, length: int, inputs: PrefixInputs) -> int:
    """Return the temporary memory of the compiled function that reads a prompt."""
    prompt, valid = np.zeros((1, length), np.int32), np.ones((1, length), bool)
    function = jax.jit(lambda params, prompt, valid: read_prompt(params, model, prompt, valid, inputs, length))
    memory = function.lower(params, prompt, valid).compile().memory_analysis()
    return 0 if memory is None else memory.temp_size_in_bytes
