"""The run of a size, and a function that trains it step by step: the parts of flaxformer that a first step needs."""

import math
from collections.abc import Callable
from typing import Any

import jax
from sizes import BETA2, CLIP, DECAY, LEARNING_RATE, Size, cores

from flaxformer import (
    AdamW,
    Attention,
    Dense,
    LanguageModel,
    LayerNorm,
    LearnedPositions,
    ModelConfig,
    Run,
    StandardLibrary,
    Training,
)
from flaxformer.devices.sharding import Devices
from flaxformer.model.layout import Layout
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup


def run_of(size: Size, steps: int = 200, **training: Any) -> Run:
    """The training run of a size, on the text of the standard library; in bfloat16, logits too, as in the peers."""
    # In float32, where it changes nothing, the field is left out, since earlier checkouts do not have it.
    logits: dict[str, Any] = {} if size.precision == "float32" else {"wide_logits": False}
    return Run(
        model=ModelConfig(
            layers=size.layers,
            d_model=size.width,
            attention=Attention(heads=size.heads, bias=False, out_bias=False),
            vocabulary=size.vocabulary,
            feed_forward=Dense(activation="gelu", bias=False),
            norm_kind=LayerNorm(affine="gain"),
            positions=LearnedPositions(max_length=size.length),
            head=LanguageModel(tied=True, bias=False, **logits),
        ),
        task=StandardLibrary(length=size.length, batch_size=size.batch),
        optimizer=AdamW(learning_rate=LEARNING_RATE, beta2=BETA2, weight_decay=DECAY, clip=CLIP),
        training=Training(steps=steps, precision=size.precision, **training),
    )


def split(batch: int) -> int:
    """Host devices, one a core, or all accelerators: as many as the batch can be cut into. Before JAX has started."""
    jax.config.update("jax_num_cpu_devices", cores())
    return math.gcd(jax.local_device_count(), batch)


def trainer(run: Run, chunk: int, devices: Devices | None = None, layout: Layout = "auto") -> Callable[[], Any]:
    """A function that trains `chunk` steps each time it is called; what it returns has to be waited for."""
    compiled = CompiledRun(run, DeviceGroup.of(devices), layout)
    source, _ = next(compiled.chunks(run, 0, chunk, chunk))
    state = compiled.start(run)

    def call() -> Any:
        nonlocal state
        state, metrics = compiled.advance(state, run, chunk, source)
        return state, metrics

    return call
