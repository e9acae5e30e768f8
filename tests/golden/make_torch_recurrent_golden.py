"""Write torch_recurrent.npz: outputs and gradients of PyTorch's recurrent modules.

Run by hand, with torch >= 2.5 installed, from the repository root:

    python tests/golden/make_torch_recurrent_golden.py

The file holds, in float32 and with "/" between the parts of a name:

    x, cotangent              [B, T, D]; gradients are those of (output · cotangent).sum()
    <cell>/weights/<name>     the state dict of a module of two layers
    <cell>/gradients/<name>   the gradient of each of those, and of x
    <cell>/output             [B, T, D]
    <cell>/state/<i>          the last states of the layers, [2, B, D]: 0 is h, and 1 an LSTM's cell

The cells are those of `MODULES`.
"""

import functools
from pathlib import Path

import numpy as np
import torch
from torch import nn

B, T, D, LAYERS = 2, 5, 7, 2
PATH = Path(__file__).with_name("torch_recurrent.npz")
MODULES = {
    "elman-tanh": functools.partial(nn.RNN, nonlinearity="tanh"),
    "elman-relu": functools.partial(nn.RNN, nonlinearity="relu"),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}


def cases(seed: int) -> dict[str, np.ndarray]:
    """Return every case, with inputs and weights drawn from a seed."""
    torch.manual_seed(seed)
    found = {"x": torch.randn(B, T, D), "cotangent": torch.randn(B, T, D)}
    for cell, make in MODULES.items():
        module = make(D, D, num_layers=LAYERS, batch_first=True)
        module.load_state_dict({name: torch.randn_like(w) / 2 for name, w in module.state_dict().items()})
        x = found["x"].clone().requires_grad_()
        output, state = module(x)
        (output * found["cotangent"]).sum().backward()
        gradients = {name: w.grad for name, w in module.named_parameters()} | {"x": x.grad}
        found |= {f"{cell}/weights/{name}": w for name, w in module.state_dict().items()}
        found |= {f"{cell}/gradients/{name}": gradient for name, gradient in gradients.items()}
        found |= {f"{cell}/state/{i}": s for i, s in enumerate(state if cell == "lstm" else (state,))}
        found[f"{cell}/output"] = output
    return {name: value.detach().numpy() for name, value in found.items()}


def main() -> None:
    """Compute every case and write them."""
    found = cases(seed=0)
    np.savez_compressed(PATH, **found)
    print(f"{PATH}: {len(found)} arrays, {PATH.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
