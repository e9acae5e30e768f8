"""Hugging Face checkpoints in safetensors: reading and writing without torch.

>>> config, params = load("models/gpt2")             # a folder with config.json and model.safetensors
>>> logits = apply(params, config, tokens)           # those of GPT2LMHeadModel
>>> save("mine", config, params)                     # which transformers' from_pretrained reads

Each family is a constant in `families`: a table of the names of its tensors, and the conversions of its attributes. An
attribute that is unknown, or has a value that cannot be expressed, is refused by name.

Weights are converted to float32, unless `load` is asked for another type. What the files say of tokens, labels and
generation is kept in the config, for `save`.
In training, dropout is applied to embeddings and residual branches; the originals also apply it to attention weights,
and GPT-2's may have another rate for embeddings (its resid_pdrop is read). A classifier reads the last valid token of a
sequence, or every token. Initial values are those of `ModelConfig`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
from jax.typing import ArrayLike

from flaxformer.config import ModelConfig
from flaxformer.data.library_tokenizer import LibraryTokenizer
from flaxformer.interop.huggingface import files
from flaxformer.interop.huggingface.attributes import CONFIG, GENERATION, Attributes
from flaxformer.interop.huggingface.families import (
    bart,
    bert,
    distilbert,
    gemma,
    gpt2,
    gpt_neox,
    gpt_oss,
    llama,
    marian,
    modernbert,
    mt5,
    olmo,
    opt,
    qwen,
    roberta,
    t5,
    vit,
)
from flaxformer.interop.huggingface.family import (
    Family,
    keep,
    read_attributes,
    read_kept,
    rows_of,
    write_attributes,
)
from flaxformer.interop.huggingface.names import normalize_names
from flaxformer.interop.tensors import declared_rows, from_tensors, host_array, tensor_shapes, to_tensors
from flaxformer.model import Transformer, specs
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError, did_you_mean, not_supported

__all__ = ["FAMILIES", "load", "load_tokenizer", "save"]

FAMILIES = {
    family.name: family
    for family in (
        gpt2.FAMILY, bert.FAMILY, t5.FAMILY, bart.FAMILY, llama.FAMILY, llama.MISTRAL, qwen.QWEN2, qwen.QWEN3,
        olmo.OLMO2, olmo.OLMO3, llama.SMOLLM3, gemma.GEMMA2, gemma.GEMMA3, gpt_neox.FAMILY, opt.FAMILY,
        roberta.FAMILY, distilbert.FAMILY, modernbert.FAMILY, marian.FAMILY, mt5.FAMILY, vit.FAMILY, gpt_oss.FAMILY,
    )
}  # fmt: skip
"""Families by the model_type of config.json."""
DTYPES = ("float32", "bfloat16", "float16", "stored")


def load(
    path_or_state: str | os.PathLike[str] | Mapping[str, ArrayLike],
    config: Attributes | None = None,
    *,
    dtype: str = "float32",
) -> tuple[ModelConfig, Transformer]:
    """Read a checkpoint, and return its config and its weights with unrolled layers.

    Known tensors that the model does not use
    (old causal buffers, BERT's pooler) are skipped, and a tensor that is stored twice is read once.

    Args:
      path_or_state: a folder with config.json and model.safetensors, or with several files and their index; or tensors
        by name, as in a `state_dict`.
      config: the content of config.json; required with tensors, and with a folder used in place of its file.
      dtype: type of the weights: "float32", to which float16 and bfloat16 are converted exactly; "bfloat16" or
        "float16"; or "stored" for that of each tensor in the file.

    Raises:
      UserError: another kind of model; an attribute of config.json that is unknown, or has an unsupported value; a
        tensor that is missing, unexpected, of another shape (the message has both) or not of floating-point numbers; or
        files that cannot be read.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype is {dtype!r}; expected {', '.join(DTYPES)}")
    if isinstance(path_or_state, str | os.PathLike):
        folder = Path(path_or_state)
        attributes = files.read_attributes_file(folder) if config is None else config
        family = _family(attributes)
        state = files.read_tensors(folder)
    elif config is None:
        raise UserError("config is None; expected the content of config.json, since tensors are given")
    else:
        attributes, family = config, _family(config)
        state = {name: host_array(array) for name, array in path_or_state.items()}
    model_config = read_attributes(family, attributes, state)
    if _first_family(model_config) is not family:
        model_config = keep(
            model_config, CONFIG, {**read_kept(model_config).get(CONFIG, {}), "model_type": family.name}
        )
    if isinstance(path_or_state, str | os.PathLike) and (settings := files.read_generation(Path(path_or_state))):
        model_config = keep(model_config, GENERATION, settings)
    declarations = specs(model_config)
    rows = declared_rows(rows_of(family, model_config), declarations)
    state = normalize_names(family, state, tensor_shapes(rows, declarations))
    what = f"tensors of the {family.name} model"
    return model_config, from_tensors(rows, declarations, state, what, None if dtype == "stored" else jnp.dtype(dtype))


def load_tokenizer(directory: str | os.PathLike[str]) -> LibraryTokenizer:
    """Read the tokenizer.json of a checkpoint, whose ids are those of its embedding.

    >>> tokens = [token for tokens in load_tokenizer("models/gpt2").encode(["Hello"]) for token in tokens]

    Raises:
      UserError: the folder has no tokenizer.json, or it cannot be read.
    """
    path = Path(directory) / "tokenizer.json"
    try:
        return LibraryTokenizer(str(path), path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def save(
    directory: str | os.PathLike[str],
    config: ModelConfig,
    params: Transformer,
    family: str | None = None,
    *,
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Write config.json and the weights in safetensors, for `load` and for transformers' from_pretrained.

    Weights of 16 bits are written as they are, all others in float32. Existing files of weights are replaced.
    Attributes that were read with the model and change no number (ids of special tokens, names of labels, settings of
    generation, limits of lengths) are written as they were read: `ModelConfig.checkpoint`. For other models,
    transformers uses its defaults.

    Args:
      directory: the folder, which is created if it does not exist.
      config, params: the model.
      family: name from `FAMILIES`; None for the family that was read, or else the first that has such models.
      shard_bytes: the weights are one file, model.safetensors, or several files of at most so many bytes with an index.

    Raises:
      UserError: no model of the family, or of any family, has this config, and the message lists each field that
        differs; or the weights are not those of the config.
    """
    chosen, attributes = _attributes(config, family)
    declarations = specs(config)
    rows = declared_rows(rows_of(chosen, config), declarations)
    tensors = to_tensors(rows, declarations, with_layout(params, "unrolled"), "weights of the config's model")
    kinds = {str(tensor.dtype) for tensor in tensors.values()}
    attributes = {**attributes, "torch_dtype": kinds.pop() if len(kinds) == 1 else "float32"}
    files.write(Path(directory), attributes, tensors, read_kept(config).get(GENERATION), shard_bytes)


def _family(attributes: Attributes) -> Family:
    name = attributes.get("model_type")
    if name not in FAMILIES:
        raise UserError(f"config.json has 'model_type' {name!r}{not_supported(str(name), FAMILIES)}")
    family = FAMILIES[name]
    known = (*family.architectures, *family.heads)
    for architecture in attributes.get("architectures") or ():
        if architecture not in known:
            raise UserError(
                f"config.json has 'architectures' {architecture!r}{not_supported(str(architecture), known)}"
            )
    return family


def _first_family(config: ModelConfig) -> Family | None:
    """Return the family as which `save` writes a model by default; None if there is none."""
    try:
        return _attributes(config, None)[0]
    except UserError:
        return None


def _attributes(config: ModelConfig, name: str | None) -> tuple[Family, Attributes]:
    """Return the family of a config, and the content of its config.json."""
    if name is not None and name not in FAMILIES:
        raise UserError(f"family is {name!r}{did_you_mean(name, list(FAMILIES))}")
    problems, first = [], FAMILIES.get(str(read_kept(config).get(CONFIG, {}).get("model_type")))
    families = [*filter(None, [first]), *FAMILIES.values()]
    for family in dict.fromkeys(families) if name is None else (FAMILIES[name],):
        try:
            return family, write_attributes(family, config)
        except UserError as error:
            problems.append(str(error) if name else f"{family.name}: {str(error).splitlines()[-1].strip()}")
    raise UserError("\n  ".join([*([] if name else ["no family has models with this config:"]), *problems]))
