"""The fused kernel: which calls it takes, and that programs for a GPU choose it.

No GPU is needed: programs are traced for one. `tests/targets/test_gpu_kernels.py` counts those of a compiled step.
"""

import ctypes
import importlib
import sys

import jax.numpy as jnp
import pytest

from flaxformer.nn import Causal, Padding, Segments, Window, dot_product_attention
from flaxformer.nn.formulations import Platform, compiling_for
from flaxformer.nn.kernels import KERNELS, attention, cudnn
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.cudnn import unsupported_reason
from flaxformer.nn.masks import Prefix
from flaxformer.system import startup

B, T, N, K, D = 3, 10, 6, 3, 8
MASKS = {
    "none": None,
    "causal": Causal(),
    "causal_window": Causal() & Window(3),
    "window_causal": Window(4) & Causal(),
}


@pytest.fixture
def on_a_gpu():
    """Programs are traced for a GPU, on which cuDNN works."""
    with compiling_for("gpu"):
        yield


def call(dtype=jnp.bfloat16, T=T, S=T, d_k=D, d_v=D, mask=None, bias=None, logit_cap=None):
    arrays = (
        jnp.ones((B, length, heads, width), dtype) for length, heads, width in ((T, N, d_k), (S, K, d_k), (S, K, d_v))
    )
    return AttentionCall(*arrays, mask=mask, bias=bias, logit_cap=logit_cap)


LENGTHS = jnp.asarray([4, 10, 0])
TAKEN = [
    {},
    {"dtype": jnp.float16},
    {"S": 4},
    {"T": 9, "S": 7},
    {"d_k": 128, "d_v": 128},
    {"d_k": 12, "d_v": 40},
    {"mask": Prefix(LENGTHS)},
    {"mask": Causal() & Prefix(LENGTHS)},
    *({"mask": mask} for mask in MASKS.values()),
]
REFUSED = {
    "bfloat16": [{"dtype": jnp.float32}],
    "up to 128": [{"d_k": 136, "d_v": 136}, {"d_v": 200}],
    "no bias": [{"bias": jnp.zeros((T, T))}],
    "logit cap": [{"logit_cap": 5.0}],
    "Causal()": [
        {"mask": Causal(offset=1)},
        {"mask": Causal(), "S": 4},
        {"mask": Window(3)},
        {"mask": Causal() & Padding(jnp.ones((B, T), bool))},
        {"mask": Segments(query=jnp.zeros((B, T), int), key=jnp.zeros((B, T), int))},
        {"mask": Causal() & Window(jnp.int32(3))},
        {"mask": Causal(offset=1) & Window(3)},
        {"mask": Causal() & Window(3) & Prefix(LENGTHS)},
        {"mask": jnp.ones((T, T), bool)},
    ],
}


@pytest.mark.parametrize("changes", TAKEN, ids=str)
def test_cudnn_takes_a_call(on_a_gpu, changes):
    assert unsupported_reason(call(**changes)) is None


@pytest.mark.parametrize(("words", "changes"), [(w, c) for w, cases in REFUSED.items() for c in cases], ids=str)
def test_cudnn_refuses_a_call_with_the_reason(on_a_gpu, words, changes):
    assert words in unsupported_reason(call(**changes))


def test_auto_is_the_first_kernel_that_takes_the_call(on_a_gpu):
    assert attention.choose(call()) is KERNELS["cudnn"].compute
    assert attention.choose(call(dtype=jnp.float32)) is KERNELS["xla"].compute
    assert attention.choose(call(dtype=jnp.float32, T=600, S=600)) is KERNELS["chunked"].compute
    assert attention.select("reference", call()) is attention.equation


def test_without_a_gpu_plain_products_and_a_clear_refusal():
    query, key, value, *_ = call()
    with pytest.raises(ValueError, match="implementation is 'cudnn': cudnn needs an NVIDIA GPU"):
        dot_product_attention(query, key, value, implementation="cudnn")


def test_a_kernel_that_fails_its_self_check_is_not_used(monkeypatch):
    monkeypatch.setattr(cudnn, "platform", lambda: Platform("gpu"))
    monkeypatch.setattr(cudnn, "self_check", lambda: "cuDNN fails here")
    assert unsupported_reason(call()) == "cuDNN fails here"


def test_the_self_check_detects_a_machine_without_cudnn():
    assert "cuDNN fails here" in cudnn.self_check()


def test_preload_loads_the_built_ins_and_nothing_where_there_are_none(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # the installed packages may have NVIDIA's libraries
    for name in [name for name in sys.modules if name.split(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    assert startup.preload_nvrtc() == []
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    for name in ("libnvrtc-builtins.so.13.0", "libnvrtc-builtins.so.broken", "libnvrtc.so.13"):
        (folder / name).touch()
    opened = []

    def load(path, mode):
        if path.endswith("broken"):
            raise OSError("not a library")
        opened.append((path, mode))

    monkeypatch.setattr(ctypes, "CDLL", load)
    importlib.invalidate_caches()
    assert [path.name for path in startup.preload_nvrtc()] == ["libnvrtc-builtins.so.13.0"]
    sys.modules.pop("nvidia")
    assert opened == [(str(folder / "libnvrtc-builtins.so.13.0"), ctypes.RTLD_GLOBAL)]
