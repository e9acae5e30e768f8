"""A CPU's cores share the batch of a run that is large enough and whose examples can be computed apart."""

import pytest

from flaxformer.catalog.mixture_of_experts import MixtureOfExperts
from flaxformer.components import Attention, BatchNorm
from flaxformer.config import ModelConfig
from flaxformer.devices.sharding import Devices
from flaxformer.nn.formulations import compiling_for
from flaxformer.tasks import StandardLibrary
from flaxformer.training import Run, Training
from flaxformer.training.device_group import default_devices

LARGE = Run(
    model=ModelConfig(layers=4, d_model=128, attention=Attention(heads=4)),
    task=StandardLibrary(length=128, batch_size=32),
)


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        ({}, 4),
        ({"task": StandardLibrary(length=128, batch_size=34)}, 2),
        ({"task": StandardLibrary(length=128, batch_size=33)}, None),
        ({"training": Training(micro_batches=16)}, 2),
        ({"training": Training(micro_batches=32)}, None),
        ({"model": LARGE.model.replace(dropout=0.1)}, 4),
        ({"model": LARGE.model.replace(norm_kind=BatchNorm())}, None),
        ({"model": LARGE.model.replace(feed_forward=MixtureOfExperts())}, None),
        (
            {
                "model": ModelConfig(layers=1, d_model=8, attention=Attention(heads=2)),
                "task": StandardLibrary(length=8, batch_size=4),
            },
            None,
        ),
    ],
    ids=str,
)
def test_cpu_cores_share_a_large_separable_batch(changes, data):
    assert default_devices(LARGE.replace(**changes), devices=4) == (None if data is None else Devices(data=data))


def test_the_default_is_one_accelerator_or_all_devices_of_several_processes():
    with compiling_for("gpu"):
        assert default_devices(LARGE) is None
        assert default_devices(LARGE, devices=16, processes=2) == Devices(data=16)
