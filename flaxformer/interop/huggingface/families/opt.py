"""OPT (Zhang et al. 2022), as in OPTForCausalLM."""

from flaxformer.components import PRE, LanguageModel, LayerNorm, LearnedPositions, NormPlacement, Tokens
from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.interop.huggingface.attributes import (
    Attributes,
    activation,
    choice,
    flag,
    number,
    rate,
    unused_attribute,
)
from flaxformer.interop.huggingface.family import Family, classifier, final_vectors
from flaxformer.interop.huggingface.tables import shifted
from flaxformer.system.errors import UserError

TENSORS = """
model.decoder.embed_tokens                     embedding/tokens                                table
model.decoder.embed_positions                  positions/table                                 positions
model.decoder.layers.*.self_attn.q_proj        blocks/*/attention/query
model.decoder.layers.*.self_attn.k_proj        blocks/*/attention/key
model.decoder.layers.*.self_attn.v_proj        blocks/*/attention/value
model.decoder.layers.*.self_attn.out_proj      blocks/*/attention/out
model.decoder.layers.*.self_attn_layer_norm    blocks/*/attention_connection/pre               norm
model.decoder.layers.*.self_attn_layer_norm    blocks/*/attention_connection/post_residual     norm
model.decoder.layers.*.fc1                     blocks/*/feed_forward/up
model.decoder.layers.*.fc2                     blocks/*/feed_forward/down
model.decoder.layers.*.final_layer_norm        blocks/*/feed_forward_connection/pre            norm
model.decoder.layers.*.final_layer_norm        blocks/*/feed_forward_connection/post_residual  norm
model.decoder.final_layer_norm                 final_norm                                      norm
lm_head                                        head                                            head
"""
NORMS = {
    (True, False): PRE,
    (True, True): NormPlacement(pre=True),
    (False, False): NormPlacement(post_residual=True),
}
"""Placement by do_layer_norm_before and _remove_final_layer_norm."""


class Norms:
    """Conversion of the placement of the norms, and of a width of embeddings that must be that of the model."""

    names = ("do_layer_norm_before", "_remove_final_layer_norm", "word_embed_proj_dim")

    def read(self, attributes: Attributes, config: ModelConfig) -> ModelConfig:
        """Return the config with its placement of norms."""
        width = attributes.get("word_embed_proj_dim")
        if width not in (None, config.d_model):
            raise UserError(
                f"config.json has 'word_embed_proj_dim' {width!r}; expected {config.d_model}, as hidden_size, the only "
                "supported value"
            )
        is_before = attributes.get("do_layer_norm_before", True)
        removes = bool(is_before and attributes.get("_remove_final_layer_norm"))
        return replace_at(config, {"norm": NORMS[bool(is_before), removes]})

    def write(self, config: ModelConfig) -> dict[str, object]:
        """Return the attributes of the placement; of the usual one for another placement."""
        before, removes = next((key for key, norm in NORMS.items() if norm == config.norm), (True, False))
        return dict(zip(self.names, (before, removes, config.d_model), strict=True))


FAMILY = Family(
    name="opt",
    architectures=("OPTForCausalLM",),
    heads={"OPTModel": final_vectors, "OPTForSequenceClassification": classifier("last", bias=False)},
    classifier="score",
    base=ModelConfig(
        inputs=Tokens(std=0.02),
        norm=PRE,
        norm_kind=LayerNorm(epsilon=1e-5),
        positions=LearnedPositions(max_length=1),
        head=LanguageModel(tied=True),
        mask_pattern="causal",
    ),
    attributes=(
        number("vocab_size", "vocabulary"),
        number("hidden_size", "d_model"),
        number("num_hidden_layers", "layers"),
        number("num_attention_heads", "attention.heads"),
        number("ffn_dim", "feed_forward.d_ff"),
        activation("activation_function", "feed_forward.activation", default="relu"),
        number("max_position_embeddings", "positions.max_length", default=2048),
        flag("enable_bias", "attention.bias", "attention.out_bias", "feed_forward.bias", default=True),
        choice(
            "layer_norm_elementwise_affine",
            {True: {"norm_kind.affine": "gain+bias"}, False: {"norm_kind.affine": "none"}},
            True,
        ),
        flag("tie_word_embeddings", "head.tied", default=True),
        rate("dropout", "dropout", default=0.1),
        unused_attribute("attention_dropout"),
        unused_attribute("activation_dropout"),
        unused_attribute("layerdrop"),
    ),
    groups=(Norms(),),
    tensors=TENSORS,
    kinds={"positions": ((".weight", "", shifted(2)),)},
    prefix="model.",
    outer=("lm_head.", "score."),
    aliases={"lm_head.weight": "model.decoder.embed_tokens.weight"},
)
