"""Write torch_encoder_layer.npz: outputs of PyTorch for one Transformer layer and for attention.

Run by hand, with torch >= 2.5 installed, from the repository root:

    python tests/golden/make_torch_golden.py

The file holds, in float32 and with "/" between the parts of a name:

    layer/weights/<torch name>                              the one set of weights that every case uses
    layer/x, layer/cotangent, layer/valid                   [B, T, D] twice; [B, T], True at real tokens
    layer/<pre|post>/<activation>/<mask>/output, x_gradient the output, and the gradient of (output · cotangent).sum()
    sdpa/<q|k|v|allowed|bias>                               [B, N, T, H] and [B, N, T, S], True = attend
    sdpa/<case>                                             outputs of F.scaled_dot_product_attention

Norm gains and biases are random too, so that none can be lost unnoticed.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

B, T, S, D_MODEL, HEADS, D_FF = 2, 7, 11, 12, 3, 19
PATH = Path(__file__).with_name("torch_encoder_layer.npz")


def layer_cases() -> dict[str, torch.Tensor]:
    """torch.nn.TransformerEncoderLayer over norm placement, activation and mask; dropout 0, evaluation mode."""
    x, cotangent = torch.randn(2, B, T, D_MODEL)
    valid = torch.arange(T) < torch.tensor([[T], [4]])
    causal = torch.ones(T, T).tril().bool()
    masks = {"none": {}, "causal": {"src_mask": ~causal}, "padding": {"src_key_padding_mask": ~valid}}
    weights = None
    found = {"x": x, "cotangent": cotangent, "valid": valid}
    for norm_first in (True, False):
        for activation in ("relu", "gelu"):
            layer = torch.nn.TransformerEncoderLayer(
                D_MODEL, HEADS, D_FF, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
            ).eval()
            weights = weights or {name: torch.randn_like(w) / 3 for name, w in layer.state_dict().items()}
            layer.load_state_dict(weights)
            for name, mask in masks.items():
                case = f"{'pre' if norm_first else 'post'}/{activation}/{name}"
                entering = x.clone().requires_grad_()
                output = layer(entering, **mask)
                (output * cotangent).sum().backward()
                found |= {f"{case}/output": output.detach(), f"{case}/x_gradient": entering.grad}
    found |= {f"weights/{name}": weight for name, weight in weights.items()}
    return {f"layer/{name}": value for name, value in found.items()}


def sdpa_cases() -> dict[str, torch.Tensor]:
    """F.scaled_dot_product_attention: masks, bias, scale, shared key-value heads; T ≠ S and d_k ≠ d_v."""
    q, k, v = torch.randn(B, 6, T, 5), torch.randn(B, 3, S, 5), torch.randn(B, 3, S, 13)
    allowed, bias = torch.rand(B, 6, T, S) < 0.6, torch.randn(B, 6, T, S)
    allowed[..., 0] = True
    attend, grouped = F.scaled_dot_product_attention, {"enable_gqa": True}
    found = {"q": q, "k": k, "v": v, "allowed": allowed, "bias": bias} | {
        "none": attend(q, k, v, **grouped),
        "causal": attend(q, k, v, is_causal=True, **grouped),
        "masked": attend(q, k, v, attn_mask=allowed, **grouped),
        "biased": attend(q, k, v, attn_mask=bias, **grouped),
        "scale": attend(q, k, v, scale=0.61, **grouped),
        "one_head_a_key": attend(q[:, :3], k, v, attn_mask=allowed[:, :3]),
    }
    return {f"sdpa/{name}": x for name, x in found.items()}


def main() -> None:
    """Compute every case and write them."""
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    cases = layer_cases() | sdpa_cases()
    np.savez_compressed(PATH, **{name: np.asarray(x) for name, x in cases.items()})
    print(f"{PATH}: {len(cases)} arrays, {PATH.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
