"""Memory of a training step per device, compiled for accelerators that this machine need not have.

Command: python experiments/benchmarks/memory.py [--only NAME ...] [--before CHECKOUT] [--gpu-config FILE]
Needs: pip install libtpu for the TPU programs; for the GPU programs, pip install 'jax[cuda13]' and FILE, such as
    xla/backends/gpu/target_config/specs/h200.txtpb of openxla/xla.
Result: a row per program with the bytes of its state and of its temporaries on each device, by the compiler of that
    device, or the bytes that it needs if it does not fit; with --before, those of another checkout beside them.
Cost: half a minute to three minutes per program.
"""

import argparse
import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
}
GPT2: dict[str, Any] = {"vocabulary": 50304, "layers": 12, "d_model": 768, "heads": 12, "length": 1024}
GPT2 |= {"layout": "unrolled"}
XL: dict[str, Any] = {"vocabulary": 50304, "layers": 48, "d_model": 1600, "heads": 25, "length": 1024}
XL |= {"layout": "scanned"}
LLAMA: dict[str, Any] = {"vocabulary": 32000, "layers": 32, "d_model": 4096, "heads": 32, "d_ff": 11008}
LLAMA |= {"length": 4096, "llama": True, "layout": "scanned", "remat": "block"}
LARGE = LLAMA | {"layers": 80, "d_model": 8192, "heads": 64, "key_value_heads": 8, "d_ff": 28672}
PROGRAMS: dict[str, dict[str, Any]] = {
    "124M, 32 × 1,024, one H200": GPT2 | {"batch": 32, "target": "h200"},
    "124M, 16 × 1,024, one v5e": GPT2 | {"batch": 16, "target": "v5e:2x2", "mesh": {}},
    "124M, 16 × 1,024, one v5e, remat block": GPT2 | {"batch": 16, "target": "v5e:2x2", "remat": "block"},
    "XL, 16 × 1,024, 8 × v5e": XL | {"batch": 16, "target": "v5e:2x4", "mesh": {"fsdp": 8}, "remat": "block"},
    "XL, 64 × 1,024, 8 × H200": XL | {"batch": 64, "target": "h200x8", "mesh": {"fsdp": 8}, "remat": "block"},
    "7B, 32 × 4,096, 32 × v5p": LLAMA | {"batch": 32, "target": "v5p:4x4x2", "mesh": {"fsdp": 32}},
    "7B, 8 × 4,096, 8 × H200": LLAMA | {"batch": 8, "target": "h200x8", "mesh": {"fsdp": 8}},
    "70B, 64 × 4,096, 256 × v5p": LARGE | {"batch": 64, "target": "v5p:8x8x4", "mesh": {"fsdp": 64, "tensor": 4}},
}
"""Shapes of the model and the batch, the device, and the mesh; bfloat16, AdamW."""


def devices_of(target: str, gpu_config: str) -> Any:
    """Return descriptions of the devices of a target."""
    from jax.experimental import topologies

    if not target.startswith("h200"):
        return topologies.get_topology_desc(platform="tpu", topology_name=target).devices
    bridge: Any = importlib.import_module("jax._src.xla_bridge")

    found = bridge.canonicalize_platform
    bridge.canonicalize_platform = lambda name: "cuda" if name in ("gpu", "cuda") else found(name)
    text = Path(gpu_config).read_text()
    count = target.partition("x")[2] or "1"
    return topologies.get_topology_desc(platform="cuda", target_config=text, topology=f"1x1x{count}").devices


def run_of(shape: dict[str, Any]) -> Any:
    """Return the run of a program."""
    from flaxformer import config as c
    from flaxformer.tasks import StandardLibrary
    from flaxformer.training import AdamW, Run, Training

    is_llama, attention = shape.get("llama"), {"heads": shape["heads"]}
    if "key_value_heads" in shape:
        attention["key_value_heads"] = shape["key_value_heads"]
    width = {"d_ff": shape.get("d_ff", 4 * shape["d_model"]), "bias": not is_llama}
    model = c.ModelConfig(
        vocabulary=shape["vocabulary"],
        layers=shape["layers"],
        d_model=shape["d_model"],
        attention=c.Attention(**attention, bias=not is_llama, out_bias=not is_llama),
        feed_forward=c.Gated(**width) if is_llama else c.Dense(activation="gelu_tanh", **width),
        positions=c.Rotary() if is_llama else c.LearnedPositions(max_length=shape["length"], std=0.02),
        norm_kind=c.RMSNorm() if is_llama else c.LayerNorm(),
        head=c.LanguageModel(tied=not is_llama),
        inputs=c.Tokens(std=0.02),
    )
    training = Training(
        precision="bfloat16", micro_batches=1, remat=shape.get("remat", "none"), **shape.get("training", {})
    )
    optimizer = AdamW(weight_decay=0.1, clip=1.0, **shape.get("optimizer", {}))
    task = StandardLibrary(batch_size=shape["batch"], length=shape["length"])
    return Run(model=model, task=task, training=training, optimizer=optimizer)


def measure(shape: dict[str, Any], gpu_config: str) -> dict[str, float]:
    """Compile a training step and return GiB per device, and seconds."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding

    from flaxformer.sharding import BATCH, Devices, shardings_of
    from flaxformer.tasks.base import Batch
    from flaxformer.training.step import start, train_step

    compiling_for: Any = contextlib.nullcontext  # in a checkout whose kernels do not know the target
    with contextlib.suppress(ImportError):
        compiling_for = importlib.import_module("flaxformer.nn.kernels.platform").compiling_for
    mesh_of = Devices(**shape.get("mesh", {}))
    mesh = mesh_of.mesh_of(devices_of(shape["target"], gpu_config)[: mesh_of.count])
    run = run_of(shape)
    state = jax.eval_shape(lambda: start(run, shape["layout"]))
    shardings = shardings_of(state, mesh)
    size = (shape["batch"], shape["length"])
    rows = NamedSharding(mesh, BATCH)

    def tokens(dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(size, dtype, sharding=rows)

    given = jax.tree.map(lambda one, own: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=own), state, shardings)
    batch = Batch(inputs=tokens(jnp.int32), targets=tokens(jnp.int32), weights=tokens(jnp.float32))
    began = time.perf_counter()
    with jax.set_mesh(mesh), compiling_for("gpu" if shape["target"].startswith("h200") else "tpu"):
        step = jax.jit(
            lambda state, batch: train_step(state, run, batch), out_shardings=(shardings, None), donate_argnums=0
        )
        try:
            compiled = step.lower(given, batch).compile()
        except jax.errors.JaxRuntimeError as error:
            found = re.search(r"[Uu]sed ([\d.]+)G of ([\d.]+)G", str(error))
            if found is None:
                raise
            return {"needs": float(found[1]), "of": float(found[2]), "seconds": time.perf_counter() - began}
    if "MEMORY_TEXT" in os.environ:
        Path(os.environ["MEMORY_TEXT"]).write_text(compiled.as_text() or "")
    memory: Any = compiled.memory_analysis()
    gib = 2.0**30
    return {
        "state": memory.argument_size_in_bytes / gib,
        "temporaries": memory.temp_size_in_bytes / gib,
        "seconds": time.perf_counter() - began,
    }


def of_checkout(checkout: Path, name: str, gpu_config: str) -> str:
    """Measure a program with the code of a checkout, in a process of its own; return the result in words."""
    command = [sys.executable, __file__, "--measure", name, "--gpu-config", gpu_config]
    done = subprocess.run(
        command, env=os.environ | TPU | {"PYTHONPATH": str(checkout)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        return f"failed: {(lines or ['no message'])[-1][:200]}"
    found = json.loads(done.stdout.splitlines()[-1])
    if "needs" in found:
        return f"does not fit: {found['needs']:.1f} of {found['of']:.1f} GiB"
    return f"{found['state']:.2f} + {found['temporaries']:.2f} GiB, compiled in {found['seconds']:.0f} s"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS), help="parts of the names of the programs")
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--gpu-config", default="h200.txtpb")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(PROGRAMS[arguments.measure], arguments.gpu_config)))
        return
    checkouts = [Path(__file__).parents[2], *([arguments.before.resolve()] if arguments.before else [])]
    print(f"| program | now |{' before |' * (len(checkouts) - 1)}\n|---|{'---|' * len(checkouts)}")
    for name in PROGRAMS:
        if any(part in name for part in arguments.only):
            print(
                f"| {name} | {' | '.join(of_checkout(own, name, arguments.gpu_config) for own in checkouts)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
