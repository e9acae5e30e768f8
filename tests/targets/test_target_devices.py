"""The table of devices, the names of targets, and the text that describes a GPU to XLA."""

import importlib.util
import re
import sys

import jax
import pytest

from flaxformer.system.errors import UserError
from flaxformer.targets import gpu
from flaxformer.targets.devices import DEVICES, GIB, TARGETS, device_of
from flaxformer.targets.gpu import cuda_is_known, target_config
from flaxformer.targets.topology import parse_target

KINDS = {
    "NVIDIA H200": "H200",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA B200": "B200",
    "TPU v5 lite": "TPU v5 lite",
    "TPU v5": "TPU v5",
    "TPU v6 lite": "TPU v6 lite",
}


@pytest.mark.parametrize("name", KINDS)
def test_a_device_is_found_by_the_name_that_jax_gives(name):
    assert device_of(name).kind == KINDS[name]
    assert device_of("cpu") is None


def test_every_target_has_all_facts():
    assert set(TARGETS) == {"b200", "h100", "h200", "a100-80", "v5e", "v5p", "v6e"}
    for device in TARGETS.values():
        assert device.memory > 15 * GIB
        assert 1e11 < device.link < device.bandwidth < 1e13
        assert device.bfloat16 >= device.float32 > 1e14
        assert (device.gpu is not None) == (device.platform == "gpu")
    assert len({device.kind for device in DEVICES}) == len(DEVICES)


TEXTS = {
    "h200x8": ("h200", (8,)),
    "h200": ("h200", (1,)),
    "a100-80": ("a100-80", (1,)),
    "a100-80x4": ("a100-80", (4,)),
    "v5e": ("v5e", (1, 1)),
    "v5e-2x4": ("v5e", (2, 4)),
    "v5p-4x4x4": ("v5p", (4, 4, 4)),
    "v6e-16x16": ("v6e", (16, 16)),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_target_is_a_device_and_a_shape(text):
    target = parse_target(text)
    assert (target.device.target, target.shape) == TEXTS[text]
    assert str(target) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h20", "target is 'h20'; did you mean 'h200'"),
        ("rtx4090", "target is 'rtx4090'; it has: b200"),
        ("h200x0", "expected h200, or with a number of devices, such as h200x8"),
        ("h200-8", "such as h200x8"),
        ("v5e-8", "such as v5e-4x4"),
        ("v5p-4x4", "such as v5p-4x4x4"),
        ("v5ex4", "such as v5e-4x4"),
        ("", "it has"),
    ],
)
def test_another_target_is_refused_with_what_there_is(text, words):
    with pytest.raises(UserError, match=re.escape(words)):
        parse_target(text)


@pytest.mark.parametrize(("text", "extra"), [("h200x8", "cuda"), ("v5e-2x4", "tpu")])
def test_without_the_compiler_a_message_names_the_extra(text, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"target {text} needs .*pip install 'flaxformer\[{extra}\]'"):
        parse_target(text).devices()


def test_memory_of_a_gpu_is_the_share_that_jax_allocates():
    assert parse_target("h200").memory == int(0.75 * TARGETS["h200"].memory)
    assert parse_target("v5e").memory == TARGETS["v5e"].memory


@pytest.mark.parametrize("name", [name for name, device in TARGETS.items() if device.gpu])
def test_a_gpu_is_described_in_balanced_text(name):
    text = target_config(TARGETS[name])
    assert text.count("{") == text.count("}") == 3
    found = dict(re.findall(r"(\w+): ([\d.]+)", text))
    assert int(found["device_memory_size"]) == TARGETS[name].memory
    assert float(found["clock_rate_ghz"]) == TARGETS[name].gpu.clock


def test_the_private_function_of_jax_is_there_in_the_versions_that_were_tried():
    assert jax.__version__.startswith(gpu.VERSIONS), f"try targets h200 and h100x8 with jax {jax.__version__}"
    bridge = sys.modules["jax._src.xla_bridge"]
    original = bridge.canonicalize_platform
    with cuda_is_known():
        assert bridge.canonicalize_platform("gpu") == bridge.canonicalize_platform("cuda") == "cuda"
        assert bridge.canonicalize_platform("cpu") == "cpu"
    assert bridge.canonicalize_platform is original


def test_a_version_of_jax_without_the_function_is_refused(monkeypatch):
    monkeypatch.delattr("jax._src.xla_bridge.canonicalize_platform")
    with pytest.raises(UserError, match=r"has no jax\._src\.xla_bridge\.canonicalize_platform"), cuda_is_known():
        pass
