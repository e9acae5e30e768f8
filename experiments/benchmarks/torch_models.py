"""The same models in PyTorch: with its fused functions, with its own layers, and from other packages."""

import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from device_limits import device_memory, of_peak
from sizes import BETA2, CLIP, DECAY, LEARNING_RATE, Size
from torch import nn
from torch.nn import functional as f

from flaxformer.bench import Work, rate

Build = Callable[[Size], tuple[nn.Module, Callable[[nn.Module, torch.Tensor], torch.Tensor]]]
"""Function from a size to the model and the function from tokens to logits."""


class Block(nn.Module):
    """Pre-norm, one product for queries, keys and values, fused causal attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, width = size.heads, size.width
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.query_key_value, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, D] to [B, T, D]."""
        parts = self.query_key_value(self.norm_1(x)).split(x.shape[-1], dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        return x + self.down(f.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    """Tokens to logits through any stack of blocks, with learned positions and tied embeddings."""

    def __init__(self, size: Size, stack: nn.Module) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.length, size.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.stack, self.norm = stack, nn.LayerNorm(size.width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, T] to [B, T, V]."""
        x = self.stack(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        return f.linear(self.norm(x), self.tokens.weight)


class CausalEncoder(nn.Module):
    """PyTorch's own encoder under a causal mask."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        options: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(size.width, size.heads, 4 * size.width, bias=False, **options)
        self.layers = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, D] to [B, T, D]."""
        return self.layers(x, mask=self.mask, is_causal=True)


def fused(size: Size) -> Any:
    """Written by us in nanoGPT's way."""
    return Decoder(size, nn.Sequential(*(Block(size) for _ in range(size.layers)))), lambda model, x: model(x)


def compiled(size: Size) -> Any:
    """The same through torch.compile."""
    model, call = fused(size)
    return torch.compile(model), call


def compiled_graphs(size: Size) -> Any:
    """The same with CUDA graphs, which save the launch of each kernel."""
    model, call = fused(size)
    return torch.compile(model, mode="reduce-overhead"), call


def encoder(size: Size) -> Any:
    """torch.nn.TransformerEncoder."""
    return Decoder(size, CausalEncoder(size)), lambda model, x: model(x)


def hugging_face(size: Size) -> Any:
    """transformers' GPT-2, with the fused attention that it chooses by itself."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_positions": size.length, "n_embd": size.width}
    sizes |= {"n_layer": size.layers, "n_head": size.heads}
    dropout: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tokens: dict[str, Any] = {"vocab_size": size.vocabulary, "bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(**sizes, **dropout, **tokens, activation_function="gelu")
    return GPT2LMHeadModel(config), lambda model, x: model(x, use_cache=False).logits


def x_transformers(size: Size) -> Any:
    """x-transformers' decoder, with its fused attention."""
    from x_transformers import Decoder as Layers
    from x_transformers import TransformerWrapper

    layers = Layers(
        dim=size.width, depth=size.layers, heads=size.heads, attn_dim_head=size.width // size.heads, attn_flash=True
    )
    model = TransformerWrapper(
        num_tokens=size.vocabulary, max_seq_len=size.length, attn_layers=layers, tie_embedding=True
    )
    return model, lambda model, x: model(x)


def nanogpt(path: str) -> Build:
    """nanoGPT's model.py at a path, or in the folder there."""
    file = Path(path) / "model.py" if Path(path).is_dir() else Path(path)
    spec = importlib.util.spec_from_file_location("nanogpt_model", file)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"nanogpt is '{path}'; expected nanoGPT's model.py, or the folder that holds it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def build(size: Size) -> Any:
        sizes = {"block_size": size.length, "n_embd": size.width, "n_layer": size.layers, "n_head": size.heads}
        config = module.GPTConfig(vocab_size=size.vocabulary, dropout=0.0, bias=False, **sizes)
        # Logits of every position come with targets alone; the loss that comes too is small beside the rest.
        return module.GPT(config), lambda model, x: model(x, x)[0]

    return build


def device_and_precision(size: Size) -> tuple[str, Any]:
    """Where it runs, and within what; products of float32 as XLA computes them by default, in TF32 on a GPU."""
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    narrow = size.precision == "bfloat16"
    return device, torch.autocast(device, torch.bfloat16) if narrow else contextlib.nullcontext()


def trainer(size: Size, build: Build) -> Callable[[], torch.Tensor]:
    """A function that trains one step each time it is called: fused AdamW, clipping, fresh random tokens."""
    torch.manual_seed(0)
    device, precision = device_and_precision(size)
    text = torch.randint(size.vocabulary, (1_000_000,)).to(device)
    offsets = torch.arange(size.length + 1, device=device)
    model, logits_of = build(size)
    model = model.to(device).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, BETA2), fused=True)

    def step() -> torch.Tensor:
        starts = torch.randint(len(text) - size.length - 1, (size.batch, 1), device=device)
        windows = text[starts + offsets]
        with precision:
            logits = logits_of(model, windows[:, :-1].contiguous())
            loss = f.cross_entropy(logits.reshape(-1, size.vocabulary), windows[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def train(work: Work, size: Size, build: Build) -> dict[str, Any]:
    """Tokens and FLOPs a second of training."""
    found: Any = rate(
        work,
        trainer(size, build),
        units=size.tokens,
        name="tokens_per_second",
        ready=wait,
        seconds=work["seconds"],
    )
    flops = found["tokens_per_second"] * size.flops_per_token
    return {**found, "flops_per_second": flops, **of_peak(flops, size.precision), **device_memory()}


def wait(result: Any) -> None:
    """Until all that was asked of the device is done; a CPU's is when a call returns."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def matmul(work: Work, size: Size, n: int) -> dict[str, Any]:
    """FLOP/s of the product of two n × n matrices, in the precision of the size."""
    device, _ = device_and_precision(size)
    dtype = getattr(torch, size.precision)
    left, right = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    units = 2 * n**3
    found: Any = rate(
        work, lambda: left @ right, units=units, name="flops_per_second", ready=wait, seconds=work["seconds"]
    )
    return {**found, **of_peak(found["flops_per_second"], size.precision)}
