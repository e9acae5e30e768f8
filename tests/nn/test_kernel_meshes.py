"""The TPU kernel over a mesh of devices, lowered for a TPU on any machine, and its values in Pallas's interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from flaxformer.devices.sharding import Devices
from flaxformer.nn import Causal, dot_product_attention
from flaxformer.nn.formulations import compiling_for
from flaxformer.nn.kernels.call import AttentionCall
from flaxformer.nn.kernels.products import reference_attention
from flaxformer.nn.kernels.splash import splash_attention

MESHES = {"data": Devices(data=2), "fsdp": Devices(fsdp=2), "tensor": Devices(tensor=2), "one device": Devices()}
AXES = {"none": set(), "data": {"data"}, "batch": {"data", "fsdp"}, "all": {"data", "fsdp", "tensor"}}
"""Axes that `shard_map` has taken from the compiler before attention is traced."""


def mapped(attend, axes):
    """The function within `shard_map` over some axes of the mesh, as the training step calls it."""
    rows = PartitionSpec(tuple(axis for axis in ("data", "fsdp") if axis in axes) or None)
    if not axes:
        return attend
    return jax.shard_map(attend, in_specs=rows, out_specs=rows, axis_names=axes, check_vma=False)


@pytest.mark.every(2, "long")
@pytest.mark.every(4)
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("mesh", MESHES)
def test_the_tpu_kernel_lowers_whatever_axes_are_mapped_already(mesh, axes):
    def attend(query, key, value):
        return dot_product_attention(query, key, value, mask=Causal())

    def total(query, key, value):
        return mapped(attend, AXES[axes])(query, key, value).astype(jnp.float32).sum()

    x = jax.ShapeDtypeStruct((2, 256, 2, 64), jnp.bfloat16)
    with jax.set_mesh(MESHES[mesh].mesh()), compiling_for("tpu"):
        lowered = jax.jit(jax.grad(total, (0, 1, 2))).trace(x, x, x).lower(lowering_platforms=("tpu",))
    assert lowered.as_text().count("tpu_custom_call") >= 3  # forward, and the gradients of queries and of keys


@pytest.mark.long
@pytest.mark.parametrize(("mesh", "axes"), [("data", "data"), ("tensor", "data"), ("tensor", "none")])
def test_the_tpu_kernel_over_a_mesh_equals_the_equation(mesh, axes):
    random = np.random.default_rng(0)
    query, key, value = (jnp.asarray(random.normal(size=(2, 7, 2, 5)), jnp.float32) for _ in range(3))

    def attend(query, key, value):
        return splash_attention(AttentionCall(query, key, value, Causal(), None, 0.37), interpret=True)

    expected = reference_attention(AttentionCall(query, key, value, Causal(), None, 0.37))
    with jax.set_mesh(MESHES[mesh].mesh()):
        found = jax.jit(mapped(attend, AXES[axes]))(query, key, value)
    np.testing.assert_allclose(found, expected, rtol=3e-5, atol=3e-5)
