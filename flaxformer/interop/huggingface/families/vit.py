"""ViT (Dosovitskiy et al. 2021), as in ViTForImageClassification; images are [height, width, channels] here."""

from collections.abc import Mapping

from flaxformer.components import PRE, LayerNorm, LearnedPositions, NoHead, Patches
from flaxformer.config import ModelConfig
from flaxformer.core.paths import get_at, replace_at
from flaxformer.interop.huggingface.attributes import Attributes, activation, flag, number, rate, unused_attribute
from flaxformer.interop.huggingface.family import Family, classifier
from flaxformer.interop.huggingface.tables import Kind
from flaxformer.interop.tensors import VECTOR, TensorLayout
from flaxformer.system.errors import UserError

TENSORS = """
vit.embeddings.cls_token                                embedding/class_token                 first
vit.embeddings.position_embeddings                      positions/table                       positions
vit.embeddings.patch_embeddings.projection              embedding/matrix                      convolution
vit.encoder.layer.*.layernorm_before                    blocks/*/attention_connection/pre     norm
vit.encoder.layer.*.attention.attention.query           blocks/*/attention/query
vit.encoder.layer.*.attention.attention.key             blocks/*/attention/key
vit.encoder.layer.*.attention.attention.value           blocks/*/attention/value
vit.encoder.layer.*.attention.output.dense              blocks/*/attention/out
vit.encoder.layer.*.layernorm_after                     blocks/*/feed_forward_connection/pre  norm
vit.encoder.layer.*.intermediate.dense                  blocks/*/feed_forward/up
vit.encoder.layer.*.output.dense                        blocks/*/feed_forward/down
vit.layernorm                                           final_norm                            norm
"""


def leading(*ones: int) -> TensorLayout:
    """Return the layout of a weight with leading axes of size 1 in the file."""
    return TensorLayout(
        shape=lambda spec: (*ones, *spec.shape),
        load=lambda weight, spec: weight.reshape(spec.shape),
        save=lambda weight, spec: weight.reshape(*ones, *spec.shape),
    )


def kinds(config: ModelConfig) -> Mapping[str, Kind]:
    """Return the kinds of a model's embeddings; the file has the numbers of a patch as (channel, row, column)."""
    size, channels = get_at(config, "inputs.size"), get_at(config, "inputs.channels")
    convolution = TensorLayout(
        shape=lambda spec: (spec.shape[1], channels, size, size),
        load=lambda weight, spec: weight.transpose(2, 3, 1, 0).reshape(spec.shape),
        save=lambda weight, spec: weight.reshape(size, size, channels, -1).transpose(3, 2, 0, 1),
    )
    return {
        "first": (("", "", leading(1, 1)),),
        "positions": (("", "", leading(1)),),
        "convolution": ((".weight", "", convolution), (".bias", "_bias", VECTOR)),
    }


class PatchSizes:
    """Conversion of the sizes of images and patches, and the number of positions."""

    names = ("image_size", "patch_size", "num_channels")

    def read(self, attributes: Attributes, config: ModelConfig) -> ModelConfig:
        """Return the config with its inputs and positions."""
        height, width = _pair("image_size", attributes.get("image_size", 224))
        rows, columns = _pair("patch_size", attributes.get("patch_size", 16))
        if rows != columns:
            raise UserError(f"config.json has 'patch_size' {[rows, columns]}; expected square patches")
        channels = attributes.get("num_channels", 3)
        inputs = Patches(height=height, width=width, size=rows, channels=channels, class_token=True)
        return replace_at(config, {"inputs": inputs, "positions": LearnedPositions(max_length=inputs.count)})

    def write(self, config: ModelConfig) -> dict[str, object]:
        """Return the sizes."""
        height, width, size, channels = (get_at(config, f"inputs.{n}") for n in ("height", "width", "size", "channels"))
        image = height if height == width else [height, width]
        return dict(zip(self.names, (image, size, channels), strict=True))


def _pair(name: str, value: object) -> tuple[int, int]:
    """Return a size as (height, width)."""
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"config.json has '{name}' {value!r}; expected a number, or a height and a width")
    return pair[0], pair[1]


FAMILY = Family(
    name="vit",
    architectures=("ViTModel",),
    heads={"ViTForImageClassification": classifier("first", bias=True)},
    classifier="classifier",
    base=ModelConfig(
        inputs=Patches(height=1, width=1, size=1, class_token=True),
        norm=PRE,
        norm_kind=LayerNorm(),
        positions=LearnedPositions(max_length=2),
        head=NoHead(),
        mask_pattern="bidirectional",
    ),
    attributes=(
        number("hidden_size", "d_model"),
        number("num_hidden_layers", "layers"),
        number("num_attention_heads", "attention.heads"),
        number("intermediate_size", "feed_forward.d_ff"),
        activation("hidden_act", "feed_forward.activation", default="gelu"),
        number("layer_norm_eps", "norm_kind.epsilon", default=1e-12),
        flag("qkv_bias", "attention.bias", default=True),
        rate("hidden_dropout_prob", "dropout", default=0.0),
        unused_attribute("attention_probs_dropout_prob"),
    ),
    groups=(PatchSizes(),),
    tensors=TENSORS,
    kinds=kinds,
    ignored={
        "of the pooler and of the head of masked images": "pooler_output_size pooler_act encoder_stride",
    },
    prefix="vit.",
    outer=("classifier.",),
    dropped=(r"vit\.pooler\.dense\.(weight|bias)", r"vit\.embeddings\.mask_token"),
)
