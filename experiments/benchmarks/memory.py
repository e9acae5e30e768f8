"""Memory of a training step per device, compiled for accelerators that this machine need not have.

Command: python experiments/benchmarks/memory.py [--only NAME ...]
Needs: pip install 'flaxformer[tpu]' for the TPU programs, and 'flaxformer[cuda]' for those of GPUs.
Result: a row per program with the bytes of its state and of its temporaries on each device, by the compiler of that
    device, or the bytes that it needs if it does not fit; of those there are; the bytes that its kernels read and
    write; and the time of the compilation.
Cost: half a minute to five minutes per program, of two cores.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

GIB = 2.0**30
GPT2: dict[str, Any] = {"vocabulary": 50304, "layers": 12, "d_model": 768, "heads": 12, "length": 1024}
GPT2 |= {"layout": "unrolled"}
XL: dict[str, Any] = {"vocabulary": 50304, "layers": 48, "d_model": 1600, "heads": 25, "length": 1024}
XL |= {"layout": "scanned"}
LLAMA: dict[str, Any] = {"vocabulary": 32000, "layers": 32, "d_model": 4096, "heads": 32, "d_ff": 11008}
LLAMA |= {"length": 4096, "llama": True, "layout": "scanned", "remat": "block"}
LARGE = LLAMA | {"layers": 80, "d_model": 8192, "heads": 64, "key_value_heads": 8, "d_ff": 28672}
PROGRAMS: dict[str, dict[str, Any]] = {
    "124M, 32 × 1,024, one H200": GPT2 | {"batch": 32, "target": "h200"},
    "124M, 32 × 1,024, one H200, rounded logits": GPT2
    | {"batch": 32, "target": "h200", "head": {"wide_logits": False}},
    "124M, 16 × 1,024, one v5e": GPT2 | {"batch": 16, "target": "v5e"},
    "124M, 16 × 1,024, one v5e, remat block": GPT2 | {"batch": 16, "target": "v5e", "remat": "block"},
    "XL, 16 × 1,024, 8 × v5e": XL | {"batch": 16, "target": "v5e-2x4", "mesh": {"fsdp": 8}, "remat": "block"},
    "XL, 64 × 1,024, 8 × H200": XL | {"batch": 64, "target": "h200x8", "mesh": {"fsdp": 8}, "remat": "block"},
    "7B, 32 × 4,096, 32 × v5p": LLAMA | {"batch": 32, "target": "v5p-4x4x2", "mesh": {"fsdp": 32}},
    "7B, 8 × 4,096, 8 × H200": LLAMA | {"batch": 8, "target": "h200x8", "mesh": {"fsdp": 8}},
    "70B, 64 × 4,096, 256 × v5p": LARGE | {"batch": 64, "target": "v5p-8x8x4", "mesh": {"fsdp": 64, "tensor": 4}},
}
"""Shapes of the model and the batch, the device, and the mesh; bfloat16, AdamW."""


def run_of(shape: dict[str, Any]) -> Any:
    """Return the run of a program."""
    import flaxformer as ff

    is_llama, attention = shape.get("llama"), {"heads": shape["heads"]}
    if "key_value_heads" in shape:
        attention["key_value_heads"] = shape["key_value_heads"]
    width = {"d_ff": shape.get("d_ff", 4 * shape["d_model"]), "bias": not is_llama}
    model = ff.ModelConfig(
        vocabulary=shape["vocabulary"],
        layers=shape["layers"],
        d_model=shape["d_model"],
        attention=ff.Attention(**attention, bias=not is_llama, out_bias=not is_llama),
        feed_forward=ff.Gated(**width) if is_llama else ff.Dense(activation="gelu_tanh", **width),
        positions=ff.Rotary() if is_llama else ff.LearnedPositions(max_length=shape["length"], std=0.02),
        norm_kind=ff.RMSNorm() if is_llama else ff.LayerNorm(),
        head=ff.LanguageModel(tied=not is_llama, **shape.get("head", {})),
        inputs=ff.Tokens(std=0.02),
    )
    training = ff.Training(
        precision="bfloat16", micro_batches=1, remat=shape.get("remat", "none"), **shape.get("training", {})
    )
    optimizer = ff.AdamW(weight_decay=0.1, clip=1.0, **shape.get("optimizer", {}))
    task = ff.StandardLibrary(batch_size=shape["batch"], length=shape["length"])
    return ff.Run(model=model, task=task, training=training, optimizer=optimizer)


def measure(shape: dict[str, Any]) -> dict[str, float | str]:
    """Compile a training step; return GiB per device, seconds, and the kernel of attention."""
    import jax

    from flaxformer.devices.sharding import Devices
    from flaxformer.targets.program import Placement, compile_step
    from flaxformer.targets.topology import parse_target

    jax.config.update("jax_platforms", "cpu")
    mesh = Devices(**shape["mesh"]) if "mesh" in shape else None
    program = compile_step(run_of(shape), Placement.of(parse_target(shape["target"]), mesh), shape["layout"])
    memory = program.memory
    state = memory.weights + memory.moments + memory.data
    return {
        "state": state / GIB,
        "temporaries": (program.needed - state) / GIB,
        "needed": program.needed / GIB,
        "available": program.available / GIB,
        "traffic": sum(kernel.bytes for kernel in program.kernels) / 1e9,
        "seconds": program.seconds,
        "kernel": ", ".join(dict.fromkeys(own.formulation for own in program.choices if own.function == "attention")),
    }


def measure_in_a_process(name: str) -> dict[str, Any]:
    """Measure a program in a process of its own, whose memory is free afterwards.

    Raises:
      RuntimeError: it failed; the message has the last line of its output.
    """
    command = [sys.executable, __file__, "--measure", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {(done.stderr.strip().splitlines() or ['no message'])[-1][:300]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str) -> str:
    """Return the row of a program."""
    try:
        found = measure_in_a_process(name)
    except RuntimeError as error:
        return f"| {name} | failed: {error} | | | | |"
    needed = f"{found['needed']:.2f}" + ("" if found["needed"] <= found["available"] else ", does not fit")
    parts = f"{found['state']:.2f} + {found['temporaries']:.2f}"
    memory = f"{parts} | {needed} of {found['available']:.1f} | {found['traffic']:.0f}"
    return f"| {name} | {memory} | {found['kernel']} | {found['seconds']:.0f} s |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS), help="parts of the names of the programs")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(PROGRAMS[arguments.measure])))
        return
    print("| program | state + temporaries, GiB per device | in all | traffic, GB | attention | compiled in |")
    print("|---|---|---|---|---|---|")
    for name in PROGRAMS:
        if any(part in name for part in arguments.only):
            print(row(name), flush=True)


if __name__ == "__main__":
    main()
