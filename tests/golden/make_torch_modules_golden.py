"""Write torch_modules.npz: outputs of PyTorch's Transformer modules, and gradients of their inputs.

Run by hand, with torch >= 2.5 installed, from the repository root:

    python tests/golden/make_torch_modules_golden.py

The file holds, in float32 and with "/" between the parts of a name:

    x, memory, wide           [B, T, D], [B, S, D] and [B, S, W], a memory of another width
    valid, memory_valid       [B, T] and [B, S], True at real tokens
    cotangent                 [B, T, D]; gradients are those of (output · cotangent).sum()
    <kind>/weights/<name>     one state dict a kind, which every case uses; cases without biases leave those out
    <kind>/<options>/<what>   output, x_gradient, memory_gradient, attention; with a leading axis for `MASKS`

The options are the norm's place, whether there are biases, and the activation; of attention, whether there are biases.
Norm gains and biases are random too, so that none can be lost unnoticed.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

B, T, S, D, HEADS, F, W = 2, 5, 7, 6, 3, 11, 13
PATH = Path(__file__).with_name("torch_modules.npz")
PLACES = {"pre": True, "post": False}
BIASES = {"bias": True, "no_bias": False}

OF_DECODER = {"tgt_mask": "causal", "tgt_key_padding_mask": "padding", "memory_key_padding_mask": "memory_padding"}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "TransformerEncoderLayer": (
        lambda module, x, **masks: module(x, **masks),
        {"src_mask": "causal", "src_key_padding_mask": "padding"},
    ),
    "TransformerDecoderLayer": (lambda module, x, memory, **masks: module(x, memory, **masks), OF_DECODER),
    "TransformerEncoder": (
        lambda module, x, **masks: module(x, **masks),
        {"mask": "causal", "src_key_padding_mask": "padding"},
    ),
    "TransformerDecoder": (lambda module, x, memory, **masks: module(x, memory, **masks), OF_DECODER),
    "Transformer": (
        lambda module, x, memory, **masks: module(memory, x, **masks),
        OF_DECODER | {"src_key_padding_mask": "memory_padding"},
    ),
    "MultiheadAttention": (
        lambda module, x, memory, **masks: module(x, memory, memory, average_attn_weights=False, **masks),
        {"key_padding_mask": "memory_padding"},
    ),
}
"""Call of each kind, with its masks as arguments."""
MASKS = [(), ("causal",), ("padding",), ("causal", "padding")]


def shared_inputs() -> dict[str, Tensor]:
    """Return the inputs of all cases."""
    shapes = {"x": (B, T, D), "memory": (B, S, D), "wide": (B, S, W), "cotangent": (B, T, D)}
    return {name: torch.randn(shape) for name, shape in shapes.items()} | {
        "valid": torch.arange(T) < torch.tensor([[T], [3]]),
        "memory_valid": torch.arange(S) < torch.tensor([[4], [S]]),
    }


def modules() -> Iterator[tuple[str, str, nn.Module]]:
    """Kind, options and module of every case; the first of a kind has all the weights that others have."""
    for place, bias, activation in itertools.product(PLACES, BIASES, ("relu", "gelu")):
        options = {"d_model": D, "nhead": HEADS, "dim_feedforward": F, "dropout": 0.0, "batch_first": True}
        options |= {"norm_first": PLACES[place], "bias": BIASES[bias], "activation": activation}
        layers = nn.TransformerEncoderLayer(**options), nn.TransformerDecoderLayer(**options)
        yield "TransformerEncoderLayer", f"{place}/{bias}/{activation}", layers[0]
        yield "TransformerDecoderLayer", f"{place}/{bias}/{activation}", layers[1]
        if (place, bias, activation) in (("pre", "bias", "relu"), ("post", "no_bias", "gelu")):
            norm = nn.LayerNorm(D) if place == "pre" else None
            stacks = nn.TransformerEncoder(layers[0], 2, norm), nn.TransformerDecoder(layers[1], 2, norm)
            yield "TransformerEncoder", f"{place}/{bias}/{activation}", stacks[0]
            yield "TransformerDecoder", f"{place}/{bias}/{activation}", stacks[1]
            whole = nn.Transformer(num_encoder_layers=2, num_decoder_layers=3, **options)
            yield "Transformer", f"{place}/{bias}/{activation}", whole
    for name, width in {"MultiheadAttention": None, "MultiheadAttention/wide": W}.items():
        for bias, has_bias in BIASES.items():
            yield name, bias, nn.MultiheadAttention(D, HEADS, bias=has_bias, kdim=width, vdim=width, batch_first=True)


def outcomes(kind: str, module: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return output, attention weights (if any) and gradients of a module under each mask."""
    call, arguments = CALLS[kind.partition("/")[0]]
    causal = ~torch.ones(T, T).tril().bool()
    masks = {"causal": causal, "padding": ~inputs["valid"], "memory_padding": ~inputs["memory_valid"]}
    found: dict[str, list[Tensor]] = {}
    for chosen in MASKS:
        given = {name: masks[mask] for name, mask in arguments.items() if mask.removeprefix("memory_") in chosen}
        entering = {"x": inputs["x"]}
        if "Encoder" not in kind:
            entering["memory"] = inputs["wide" if kind.endswith("wide") else "memory"]
        entering = {name: value.clone().requires_grad_() for name, value in entering.items()}
        answer = call(module, **entering, **given)
        output, *attention = answer if isinstance(answer, tuple) else (answer,)
        (output * inputs["cotangent"]).sum().backward()
        one = {"output": output} | {f"{name}_gradient": value.grad for name, value in entering.items()}
        for name, value in (one | ({"attention": attention[0]} if attention else {})).items():
            found.setdefault(name, []).append(value.detach())
    return {name: torch.stack(values) for name, values in found.items()}


def cases(seed: int) -> dict[str, np.ndarray]:
    """Return every case, with inputs and weights drawn from a seed."""
    torch.manual_seed(seed)
    torch.backends.mha.set_fastpath_enabled(False)
    inputs = shared_inputs()
    found = dict(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nested tensors, which are part of the fast path
        for kind, options, module in modules():
            for name, weight in module.state_dict().items():
                found.setdefault(f"{kind}/weights/{name}", torch.randn_like(weight) / 3)
            module.load_state_dict({name: found[f"{kind}/weights/{name}"] for name in module.state_dict()})
            found |= {f"{kind}/{options}/{name}": x for name, x in outcomes(kind, module, inputs).items()}
    return {name: value.numpy() for name, value in found.items()}


def main() -> None:
    """Compute every case and write them."""
    found = cases(seed=0)
    np.savez_compressed(PATH, **found)
    print(f"{PATH}: {len(found)} arrays, {PATH.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
