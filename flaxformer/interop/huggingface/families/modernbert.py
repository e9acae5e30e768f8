"""ModernBERT (Warner et al. 2024, arXiv:2412.13663), as in ModernBertForMaskedLM: windows, and one norm less."""

from flaxformer.components import NO_NORM, Gated, LanguageModel, LayerNorm, NormPlacement, Rotary, Tokens
from flaxformer.config import Block, ModelConfig
from flaxformer.interop.huggingface.attributes import (
    Attributes,
    activation,
    choice,
    flag,
    number,
    unused_attribute,
)
from flaxformer.interop.huggingface.family import Family, final_vectors
from flaxformer.interop.huggingface.layer_kinds import FULL, SLIDING, LayerKinds

TENSORS = """
model.embeddings.tok_embeddings    embedding/tokens                       table
model.embeddings.norm              embedding_norm                         norm
model.layers.*.attn_norm           blocks/*/attention_connection/pre      norm
model.layers.*.attn.Wqkv           blocks/*/attention/query+key+value
model.layers.*.attn.Wo             blocks/*/attention/out
model.layers.*.mlp_norm            blocks/*/feed_forward_connection/pre   norm
model.layers.*.mlp.Wi              blocks/*/feed_forward/gate+up
model.layers.*.mlp.Wo              blocks/*/feed_forward/down
model.final_norm                   final_norm                             norm
head.dense                         head/transform                         head
head.norm                          head/transform/norm                    norm
decoder                            head                                   head
"""
BASE = ModelConfig(
    inputs=Tokens(std=0.02),
    norm=NormPlacement(pre=True, embedding=True, final=True),
    norm_kind=LayerNorm(affine="gain"),
    positions=Rotary(),
    head=LanguageModel(tied=True, bias=True, transform="gelu", transform_bias=False),
    mask_pattern="bidirectional",
    feed_forward=Gated(activation="gelu", bias=False),
)
BASE = BASE.replace(attention=BASE.attention.replace(bias=False, out_bias=False))


def _types(attributes: Attributes, layers: int) -> list[str]:
    period = attributes.get("global_attn_every_n_layers") or 3
    return [SLIDING if layer % period else FULL for layer in range(layers)]


class FirstNorm:
    """The first layer has no norm before its attention, which reads the norm of the embedding."""

    names = ()

    def read(self, attributes: Attributes, config: ModelConfig) -> ModelConfig:
        """Return the config with a block for each layer."""
        period = config.pattern or (Block(),)
        blocks = [period[layer % len(period)] for layer in range(config.layers)]
        first = [block.replace(attention_norm=NO_NORM) for block in blocks[:1]]
        return config.replace(pattern=(*first, *blocks[1:]))

    def write(self, config: ModelConfig) -> dict[str, object]:
        """Return no attribute."""
        return {}


FAMILY = Family(
    name="modernbert",
    architectures=("ModernBertForMaskedLM",),
    heads={"ModernBertModel": final_vectors},
    base=BASE,
    attributes=(
        number("vocab_size", "vocabulary"),
        number("hidden_size", "d_model"),
        number("num_hidden_layers", "layers"),
        number("num_attention_heads", "attention.heads"),
        number("intermediate_size", "feed_forward.d_ff"),
        activation("hidden_activation", "feed_forward.activation", default="gelu"),
        number("norm_eps", "norm_kind.epsilon", default=1e-5),
        choice("norm_bias", {False: {"norm_kind.affine": "gain"}, True: {"norm_kind.affine": "gain+bias"}}, False),
        flag("attention_bias", "attention.bias", "attention.out_bias", default=False),
        flag("mlp_bias", "feed_forward.bias", default=False),
        flag("decoder_bias", "head.bias", default=True),
        flag("classifier_bias", "head.transform_bias", default=False),
        activation("classifier_activation", "head.transform", default="gelu"),
        flag("tie_word_embeddings", "head.tied", default=True),
        *map(unused_attribute, ("attention_dropout", "embedding_dropout", "mlp_dropout")),
    ),
    groups=(
        LayerKinds(
            types=_types,
            window="local_attention",
            default_window=128,
            is_diameter=True,
            bases={FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
            read_by_types=("global_attn_every_n_layers",),
        ),
        FirstNorm(),
    ),
    tensors=TENSORS,
    transform="feed_forward.activation",
    fixed={"rope_scaling": None},
    ignored={
        "a limit that the function does not have": "max_position_embeddings",
        "tokens of the tokenizer": "cls_token_id",
        "another task's head": "classifier_pooling",
        "how the loss is computed": "sparse_prediction sparse_pred_ignore_index",
        "which kernels compute it": "deterministic_flash_attn reference_compile repad_logits_with_grad",
        "further initial values": "initializer_cutoff_factor",
        "attributes of BERT that no code reads": "position_embedding_type layer_norm_eps",
    },
    prefix="model.",
    outer=("head.", "decoder."),
    aliases={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
)
