"""Memory that a run, or decoding, needs at least, compared with that of this machine before any is allocated."""

import dataclasses
import functools
import math
import operator
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from flaxformer.config import ModelConfig
from flaxformer.core.struct import Config
from flaxformer.core.weight_specs import Declared, declarations
from flaxformer.model.call import PrefixInputs
from flaxformer.model.decoding import cache_capacity
from flaxformer.model.prefill import read_prompt
from flaxformer.model.transformer import new_cache
from flaxformer.model.weights import Transformer
from flaxformer.system.errors import UserError
from flaxformer.training.micro_batches import micro_batches
from flaxformer.training.run import Run

FLOAT = 4
"""Bytes of a number of a weight, and of a token."""
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory that a container or a cluster's job may use."""


def needed_bytes(run: Run) -> dict[str, int]:
    """Return lower bounds on the bytes that training a run needs, by what they are for, from its config alone.

    The optimizer's state and most activations are not counted: the compiler's analysis, which has them, is compared too
    once there is a compiled program.
    """
    model, task = run.model, run.task
    tokens, (batches, rows) = run.tokens_per_step, task.evaluation_shape
    return {
        "weights and gradients": 2 * FLOAT * parameters(model),
        "the activations of a layer": FLOAT * model.d_model * tokens // micro_batches(run),
        "the evaluation data": FLOAT * batches * rows * task.tokens_read(model),
    }


def parameters(config: ModelConfig) -> int:
    """Return the number of parameters; equal layers are counted once, and the shapes may exceed any memory."""
    return _count(declarations(Transformer, config))


def _count(declared: Transformer) -> int:
    blocks = declared.blocks if isinstance(declared.blocks, tuple) else (declared.blocks,)
    copies = Counter(map(id, blocks))
    trees = [*{id(block): block for block in blocks}.values()]
    total = sum(copies[id(tree)] * _numbers(tree) for tree in trees) + _numbers(
        declared.replace(blocks=(), encoder=None)
    )
    return total + (0 if declared.encoder is None else _count(declared.encoder))


def _numbers(tree: object) -> int:
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Declared))
    return sum(math.prod(weight.spec.shape) for weight in leaves)


def check_memory(run: Run, who: str = "the run") -> None:
    """Refuse a run that cannot fit into memory, before any is allocated.

    Raises:
      UserError: it needs more than the devices have; the message says for what.
    """
    if message := excess(run):
        raise UserError(f"{who} {message}")


def excess(run: Run) -> str:
    """Return what a run needs and what there is, if it cannot fit into memory; else an empty text."""
    needed, memory = needed_bytes(run), machine_bytes()
    if sum(needed.values()) <= memory:
        return ""
    listed = ", ".join(f"{size(count)} for {what}" for what, count in needed.items())
    path, value = max([*_sizes(run.model, "model"), *_sizes(run.task, "task")], key=operator.itemgetter(1))
    return (
        f"needs at least {size(sum(needed.values()))} of memory ({listed}) and there are {size(memory)}; expected a "
        f"smaller model, batch or length (the largest size is {path}={value})"
    )


def _sizes(config: Config, path: str) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a config and of its parts, by their paths."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        components = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for number, component in components:
            at = f"{path}.{field.name}" if number is None else f"{path}.{field.name}.{number}"
            if isinstance(component, Config):
                yield from _sizes(component, at)
            elif isinstance(component, int) and not isinstance(component, bool):
                yield at, component


def check_compiled(used: int, name: str) -> None:
    """Refuse to call a compiled program that needs more memory than there is.

    Raises:
      MemoryError: as the call would, but before anything is allocated.
    """
    if used > machine_bytes():
        raise MemoryError(f"{name} needs {size(used)} and there are {size(machine_bytes())}")


def machine_bytes() -> int:
    """Return the memory of all devices of this process; of CPU devices, that of the machine, which they share."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    limits = [device["bytes_limit"] for device in stats if device and "bytes_limit" in device]
    return sum(limits) * jax.process_count() if limits else host_bytes() * jax.process_count()


@functools.cache
def host_bytes() -> int:
    """Return the memory of the machine, or what this process may use of it, if that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in map(Path, LIMITS):
        text = path.read_text().strip() if path.is_file() else ""
        limits += [int(text)] if text.isdecimal() else []
    limits += [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY]
    return min(limits)


def size(count: int) -> str:
    """Return a number of bytes with three digits and a unit."""
    units = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
    power = min(max(0, (len(str(count)) - 1) // 3), len(units) - 1)
    return f"{count / 1000**power:.3g} {units[power]}"


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
