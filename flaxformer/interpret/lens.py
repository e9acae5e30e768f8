"""Logit lens: the output that the head gives for the residual stream after each block."""

from typing import Unpack

import jax
from jaxtyping import Array, Float, PyTree

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.core.points import Edit
from flaxformer.model.call import ForwardInputs
from flaxformer.model.weights import Transformer


def logit_lens(
    params: Transformer, config: ModelConfig, inputs: Array, **arguments: Unpack[ForwardInputs]
) -> dict[int, Float[Array, "..."]]:
    """Return head(final_norm(x_l)) for the residual stream x_l after l blocks, by l = 0 … layers.

    x_0 are the embedded inputs, and the entry of all layers is the output of the model. Each output is that of the
    model with the stream after the last block replaced by x_l, so that it holds for any norm, residual rule and head;
    blocks that this makes superfluous are not computed under `jit`.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    if not config.layers:
        return {0: model.apply(params, config, inputs, **arguments)}
    branches = [list(block_config.branches())[-1][0] for block_config in config.layer_configs]
    ends = [f"blocks/{layer}/{branch}/stream" for layer, branch in enumerate(branches)]
    activations = model.activations_at(params, config, inputs, ["embedded", *ends], **arguments)
    streams = [config.residual.begin(activations["embedded"], config.layers), *(activations[path] for path in ends)]

    def after(stream: PyTree) -> Edit:
        return lambda last: jax.tree.map(lambda new, old: new.astype(old.dtype), stream, last)

    return {
        depth: model.apply(params, config, inputs, edit={ends[-1]: after(stream)}, **arguments)
        for depth, stream in enumerate(streams)
    }
