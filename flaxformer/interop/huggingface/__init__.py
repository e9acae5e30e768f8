"""Hugging Face checkpoints of GPT-2, BERT, T5, BART and Llama in safetensors, read and written without torch.

>>> config, params = load("gpt2")                    # a folder with config.json and model.safetensors
>>> logits = apply(params, config, tokens)           # those of GPT2LMHeadModel
>>> save("mine", config, params)                     # which transformers' from_pretrained reads

    gpt2    GPT2LMHeadModel
    bert    BertForMaskedLM
    t5      T5ForConditionalGeneration, 1.0 and 1.1
    bart    BartForConditionalGeneration
    llama   LlamaForCausalLM, with the default rotary positions

Weights are float32, whatever the file's type. Dropout outside evaluation is that of embeddings and branches alone,
where the originals also have it on attention weights; initial values are those of `ModelConfig`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from flaxformer.config import ModelConfig
from flaxformer.interop.huggingface import files
from flaxformer.interop.huggingface.bart import BART
from flaxformer.interop.huggingface.bert import BERT
from flaxformer.interop.huggingface.family import Family, read_attributes, write_attributes
from flaxformer.interop.huggingface.gpt2 import GPT2
from flaxformer.interop.huggingface.llama import LLAMA
from flaxformer.interop.huggingface.names import normalize_names
from flaxformer.interop.huggingface.t5 import T5
from flaxformer.interop.tensors import declared, from_tensors, shapes, to_tensors
from flaxformer.model import Transformer, specs
from flaxformer.model.transformer import with_layout
from flaxformer.struct import UserError, did_you_mean

__all__ = ["FAMILIES", "load", "save"]

FAMILIES = {family.name: family for family in (GPT2, BERT, T5, BART, LLAMA)}
"""By config.json's model_type."""


def load(
    path_or_state: str | os.PathLike[str] | Mapping[str, ArrayLike], config: Mapping[str, Any] | None = None
) -> tuple[ModelConfig, Transformer]:
    """The config and the weights of a checkpoint, layers unrolled.

    float16 and bfloat16 numbers are read as float32, exactly. Tensors that the model does not need (old causal
    buffers, BERT's pooler) are left out by name, and a tensor that is stored twice is read once.

    Args:
      path_or_state: a folder with config.json and model.safetensors, or several files and their index; or tensors by
        name, as `state_dict` has them.
      config: the content of config.json; needed beside tensors, and in place of the file's beside a folder.

    Raises:
      UserError: another kind of model; an attribute of config.json that is neither mapped nor known to leave the
        function as it is, or a value of one that makes another function; a tensor that is missing, unexpected, of
        another shape (both are named) or no floating-point numbers; files that cannot be read.
    """
    if isinstance(path_or_state, str | os.PathLike):
        folder = Path(path_or_state)
        given = files.read_config(folder) if config is None else config
        family = _family(given)
        state = files.read_tensors(folder)
    elif config is None:
        raise UserError("config is None beside tensors; expected the content of config.json")
    else:
        given, family = config, _family(config)
        state = {name: np.asarray(array) for name, array in path_or_state.items()}
    own = read_attributes(family, given, state)
    declarations = specs(own)
    rows = declared(family.rows(own), declarations)
    state = normalize_names(family, state, shapes(rows, declarations))
    return own, from_tensors(rows, declarations, state, f"tensors of the {family.name} model")


def save(
    directory: str | os.PathLike[str], config: ModelConfig, params: Transformer, family: str | None = None
) -> None:
    """Write config.json and model.safetensors, in float32, for `load` and for transformers' from_pretrained.

    Both replace what the folder has by these names. Ids of special tokens are no part of a `ModelConfig`, so that
    transformers takes its defaults.

    Args:
      directory: made where it is not there.
      family: "gpt2", "bert", "t5", "bart" or "llama"; None takes the one that the config is a model of.

    Raises:
      UserError: a config that the family, or every family, cannot be: each field that differs is named; weights that
        are not the config's.
    """
    chosen, attributes = _attributes(config, family)
    declarations = specs(config)
    rows = declared(chosen.rows(config), declarations)
    tensors = to_tensors(rows, declarations, with_layout(params, "unrolled"), "weights of the config's model")
    files.write(Path(directory), attributes, tensors)


def _family(attributes: Mapping[str, Any]) -> Family:
    name = attributes.get("model_type")
    if name not in FAMILIES:
        raise UserError(f"config.json has 'model_type' {name!r}{did_you_mean(str(name), list(FAMILIES))}")
    family = FAMILIES[name]
    for architecture in attributes.get("architectures") or ():
        if architecture not in family.architectures:
            raise UserError(
                f"config.json has 'architectures' {architecture!r}; expected {' or '.join(family.architectures)}"
            )
    return family


def _attributes(config: ModelConfig, name: str | None) -> tuple[Family, dict[str, Any]]:
    """The family that a config is a model of, and its config.json."""
    if name is not None and name not in FAMILIES:
        raise UserError(f"family is {name!r}{did_you_mean(name, list(FAMILIES))}")
    problems = []
    for family in FAMILIES.values() if name is None else (FAMILIES[name],):
        try:
            return family, write_attributes(family, config)
        except UserError as error:
            problems.append(str(error) if name else f"{family.name}: {str(error).splitlines()[-1].strip()}")
    raise UserError("\n  ".join([*([] if name else ["the config is a model of no family:"]), *problems]))
