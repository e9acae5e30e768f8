"""FLOPs against the formula, by hand; and peaks by what JAX calls a device."""

import math

import pytest

from flaxformer.components import Attention, Classifier, Dense, Elman, LanguageModel, LearnedPositions, Patches
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.jobs.peak import model_flops, peak
from flaxformer.tasks import Digits, StandardLibrary
from flaxformer.training import Run, Training

TEXT = StandardLibrary(length=11, batch_size=3)


def flops(config, **training):
    run = Run(model=config, task=TEXT, training=Training(steps=2, **training))
    return model_flops(run) / run.tokens_per_step


def test_a_decoder_has_six_flops_a_weight_and_its_attention():
    layers, width, hidden = 2, 12, 7
    config = ModelConfig(
        vocabulary=257, layers=layers, d_model=width, attention=Attention(heads=3), feed_forward=Dense(d_ff=hidden)
    )
    weights = layers * (4 * width**2 + 2 * width * hidden) + 257 * width
    expected = 6 * weights + 12 * layers * width * 11
    assert flops(config) == expected
    assert flops(config.replace(head=LanguageModel(tied=True))) == expected
    assert flops(config.replace(positions=LearnedPositions(max_length=11))) == expected


def test_flops_do_not_count_recomputation_or_micro_batches():
    config = ModelConfig(vocabulary=257, layers=2, d_model=12, attention=Attention(heads=3), feed_forward=Dense(d_ff=7))
    for how in ({"remat": "block"}, {"micro_batches": 3}, {"precision": "bfloat16"}):
        assert flops(config, **how) == flops(config)


def test_gpt_2_has_the_figure_of_the_convention():
    config = ModelConfig(
        vocabulary=50257,
        layers=12,
        d_model=768,
        attention=Attention(heads=12),
        feed_forward=Dense(d_ff=3072),
        positions=LearnedPositions(max_length=1024),
    )
    run = Run(model=config, task=StandardLibrary(length=1024, batch_size=1))
    assert model_flops(run) / run.tokens_per_step == pytest.approx(854.4e6, rel=1e-4)


def test_a_loop_counts_as_often_as_it_runs():
    config = recurrent_model(Elman(), vocabulary=257, d_model=5)
    assert flops(config) == 6 * (2 * 5 * 5 + 257 * 5)


def test_an_encoder_of_patches_has_them_and_its_class_token():
    inputs, head = Patches(height=8, width=8, size=4), Classifier(classes=10)
    config = ModelConfig(
        inputs=inputs,
        head=head,
        layers=1,
        d_model=6,
        attention=Attention(heads=2),
        feed_forward=Dense(d_ff=5),
        mask_pattern="bidirectional",
    )
    run = Run(model=config, task=Digits(batch_size=2))
    patches, tokens = 4, run.task.tokens_read(config)
    products = patches * 16 * 6 + tokens * (4 * 6**2 + 2 * 6 * 5) + 2 * tokens**2 * 6 + 6 * 10
    assert model_flops(run) == 6 * 2 * products


@pytest.mark.parametrize(
    ("kind", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5),
        ("NVIDIA H100 80GB HBM3", "float32", 494.5),
        ("NVIDIA H100 PCIe", "bfloat16", 756.5),
        ("NVIDIA H200", "bfloat16", 989.5),
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312),
        ("NVIDIA A100-SXM4-40GB", "float32", 156),
        ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA L40S", "bfloat16", 362),
        ("Tesla V100-SXM2-16GB", "float32", 15.7),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("TPU v2", "bfloat16", 23),
        ("TPU v4", "bfloat16", 275),
        ("TPU v5 lite", "bfloat16", 197),
        ("TPU v5", "bfloat16", 459),
        ("TPU v5p", "bfloat16", 459),
        ("TPU v6 lite", "float32", 918),
        ("cpu", "float32", None),
    ],
)
def test_peaks_are_found_by_the_device_kind(kind, precision, tflops):
    found = peak(kind, precision)
    assert found is None if tflops is None else math.isclose(found, tflops * 1e12)
