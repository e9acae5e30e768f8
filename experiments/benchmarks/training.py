"""Training speed of the default study's model, beside the same model written in PyTorch in nanoGPT's way.

Command: python experiments/benchmarks/training.py [ROUNDS]
Needs torch for the comparison; without it, our figures alone are printed. Every measurement is a fresh process, and the
ways take turns, so that a machine whose speed drifts drifts for all. Printed: tokens per second in each round, their
median, and the median over rounds of the ratio to PyTorch in the same round.
"""

import importlib.util
import json
import statistics
import subprocess
import sys
import time

STEPS, WARM_UP, LENGTH, BATCH, LAYERS, WIDTH, FEED_FORWARD, VOCABULARY = 200, 50, 32, 16, 6, 64, 256, 256


def ours(devices: int) -> float:
    """Tokens per second of the study engine: a run at a time on each device, compilation not counted."""
    from pathlib import Path

    from flaxformer.study.execute import Compiled, Execution, Finished, execute, one_cpu_device_per_core
    from flaxformer.study.load import load_study
    from flaxformer.study.plan import groups

    one_cpu_device_per_core()
    study = load_study(Path(__file__).parents[1] / "norm_and_scale.py")
    rates, compiled = [], 0
    for event in execute(groups(study.cells()), Execution(devices=devices)):
        compiled += isinstance(event, Compiled)
        if isinstance(event, Finished) and compiled == devices:
            rates.append(event.row["tokens_per_second"])
        if len(rates) == 6 * devices:
            break
    return statistics.median(rates[devices:]) * devices


def torch_in_nanogpt_style() -> float:
    """Tokens per second of the same model, batch and optimiser in PyTorch: fused attention, fused AdamW, all cores."""
    import torch
    from torch import nn
    from torch.nn import functional as f

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, FEED_FORWARD), nn.Linear(FEED_FORWARD, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part[:, None] for part in self.qkv(self.norms[0](x)).split(WIDTH, dim=-1))
            x = x + self.out(f.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
            return x + self.down(f.relu(self.up(self.norms[1](x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.tokens(tokens) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    torch.manual_seed(0)
    text, model = torch.randint(VOCABULARY, (1_000_000,)), Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            began = time.perf_counter()
        starts = torch.randint(len(text) - LENGTH, (BATCH,)).tolist()
        inputs = torch.stack([text[i : i + LENGTH] for i in starts])
        targets = torch.stack([text[i + 1 : i + 1 + LENGTH] for i in starts])
        loss = f.cross_entropy(model(inputs).view(-1, VOCABULARY), targets.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return STEPS * BATCH * LENGTH / (time.perf_counter() - began)


WAYS = {
    "flaxformer, one device": lambda: ours(1),
    "flaxformer, two devices": lambda: ours(2),
    "PyTorch, nanoGPT style": torch_in_nanogpt_style,
}
PEER = "PyTorch, nanoGPT style"


def main(rounds: int) -> None:
    """Measure every way once a round, each in its own process, and print the table."""
    ways = [way for way in WAYS if way != PEER or importlib.util.find_spec("torch")]
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            done = subprocess.run([sys.executable, __file__, "--way", way], capture_output=True, text=True, check=True)
            rates[way].append(json.loads(done.stdout.splitlines()[-1]))
    for way, found in rates.items():
        line = f"{way:26} {statistics.median(found):>9,.0f} tokens/s ({min(found):,.0f} to {max(found):,.0f})"
        if PEER in rates:
            ratios = [own / peer for own, peer in zip(found, rates[PEER], strict=True)]
            line += f"   {statistics.median(ratios):.2f} × PyTorch ({min(ratios):.2f} to {max(ratios):.2f})"
        print(line)


if __name__ == "__main__":
    if "--way" in sys.argv:
        print(json.dumps(WAYS[sys.argv[-1]]()))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
