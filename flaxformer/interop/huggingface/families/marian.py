"""Marian (Junczys-Dowmunt et al. 2018), as in MarianMTModel: BART with sines as positions, and without a first norm."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from flaxformer.components import NormPlacement, Sinusoidal
from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.attributes import Attributes, number
from flaxformer.interop.huggingface.families import bart
from flaxformer.interop.huggingface.family import Family
from flaxformer.interop.huggingface.tables import within
from flaxformer.nn.positions import sinusoidal
from flaxformer.system.errors import UserError

TABLE = "embed_positions.weight"


def _normalize(attributes: Attributes, state: Mapping[str, np.ndarray]) -> Attributes:
    """Return the attributes; tables of positions in the file must be the sines that are computed here."""
    for name, table in state.items():
        if name.endswith(TABLE):
            sines = sinusoidal(jnp.arange(len(table)), table.shape[1], interleaved=False)
            if not np.allclose(table.astype(np.float32), sines, atol=5e-3):
                raise UserError(f"tensor '{name}' differs from sines and cosines; expected those of Vaswani et al.")
    return attributes


FAMILY = Family(
    name="marian",
    architectures=("MarianMTModel",),
    base=replace_at(
        bart.FAMILY.base,
        {
            f"{stack}{field}": value
            for stack in ("", "encoder.")
            for field, value in {
                "norm": NormPlacement(post_residual=True),
                "positions": Sinusoidal(layout="split"),
            }.items()
        },
    ),
    attributes=(
        *bart.ATTRIBUTES,
        number("vocab_size", "vocabulary", "encoder.vocabulary"),
        number("decoder_vocab_size", "vocabulary", default=lambda attributes: attributes["vocab_size"]),
    ),
    tensors=within("model.encoder.", "encoder/", bart.LAYER)
    + within("model.decoder.", "", bart.LAYER + bart.CROSS)
    + bart.ENDS,
    kinds=bart.KINDS,
    fixed={
        **bart.FIXED,
        "tie_word_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "normalize_embedding": False,
        "static_position_embeddings": True,
    },
    ignored={
        "equal to encoder_layers": "num_hidden_layers",
        "a limit that the function does not have": "max_position_embeddings",
    },
    normalize=_normalize,
    prefix="model.",
    outer=("lm_head.", "final_logits_bias"),
    aliases=bart.FAMILY.aliases,
    dropped=(r"model\.(encoder|decoder)\.embed_positions\.weight",),
    zeros=("final_logits_bias",),
)
