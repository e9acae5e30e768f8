"""Kernels of attention: its table of formulations.

| kernel | platform | masks | also |
| --- | --- | --- | --- |
| cudnn | NVIDIA GPU | none; causal, with a fixed window or with lengths; lengths | bfloat16, float16; d ≤ 128 |
| splash | TPU | causal, windows of fixed width, padding, lengths, segments | a fixed logit cap; any d |
| tokamax | NVIDIA GPU | causal, window, padding, lengths | bfloat16; a fixed logit cap; where it is installed |
| chunked | any | any | bias, traced scale and cap; above `chunked.MAX_LOGITS` logits per head |
| xla | any | any | everything; as the equation, `reference`, it holds all logits [T, S] |
"""

from flaxformer.nn.formulations import FormulatedFunction, Formulation
from flaxformer.nn.kernels import chunked, cudnn, splash, tokamax
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.products import reference_attention, xla_attention
from flaxformer.nn.kernels.structure import structure

KERNELS = {
    "cudnn": Formulation(
        cudnn.cudnn_attention,
        gain="holds no logits: 177 TFLOP/s on an H200, where tiles have 31 (bench kernels)",
        platforms=("gpu",),
        unsupported_reason=cudnn.unsupported_reason,
        is_fused=True,
    ),
    "splash": Formulation(
        splash.splash_attention,
        gain="holds no logits, and skips what the mask excludes",
        platforms=("tpu",),
        unsupported_reason=splash.unsupported_reason,
        unsuitable_reason=splash.unsuitable_reason,
        is_fused=True,
    ),
    "tokamax": Formulation(
        tokamax.tokamax_attention,
        gain="holds no logits, and takes what cuDNN does not (bench kernels)",
        platforms=("gpu",),
        unsupported_reason=tokamax.unsupported_reason,
        is_fused=True,
    ),
    "chunked": Formulation(
        chunked.chunked_attention,
        gain="holds the logits of a tile alone, and skips tiles that the mask excludes (bench kernels)",
        unsupported_reason=chunked.unsupported_reason,
        unsuitable_reason=chunked.unsuitable_reason,
    ),
    "xla": Formulation(
        xla_attention, gain="divides the output [T, d_v] and not the weights [T, S]: 1.12 × at S on a CPU"
    ),
}
"""The kernels by name, the preferred one first."""


def _describe(call: AttentionCall) -> str:
    """Return the shapes, the dtype and the mask of a call in words."""
    (T, S), (d_k, d_v) = call.lengths, call.widths
    heads, key_heads = call.query.shape[-2], call.key.shape[-2]
    parts = [
        f"T {T}" if T == S else f"T {T}, S {S}",
        f"{heads} heads" if heads == key_heads else f"{heads} heads on {key_heads}",
        f"d {d_k}" if d_k == d_v else f"d {d_k} and {d_v}",
        call.query.dtype.name,
        structure(call.mask).describe(),
        *(["bias"] if call.bias is not None else []),
        *(["logit cap"] if call.logit_cap is not None else []),
    ]
    return ", ".join(parts)


attention = FormulatedFunction("attention", reference_attention, KERNELS, _describe)
"""The attention of a call, by the equation of `nn.attention` or a kernel."""
