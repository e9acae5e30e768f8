"""Many devices give what one does; weights and batches are cut as their axes say; a checkpoint fits every mesh."""

import functools
import math
import os
import re
import subprocess
import sys
from collections import Counter

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from flaxformer.catalog import MixtureOfExperts
from flaxformer.checkpoint import Checkpoints
from flaxformer.components import LSTM, Attention, BatchNorm, Dense
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.core.params import Parameters, param, path_name
from flaxformer.core.weight_axes import axes
from flaxformer.devices.sharding import (
    Devices,
    device_put_global,
    parse_devices,
    replicated,
    replicated_axes,
    shardings_of,
    weight_spec,
)
from flaxformer.nn.formulations import compiling_for
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy, StandardLibrary
from flaxformer.tasks.sharded import ShardedSource
from flaxformer.training import Adafactor, Muon, Run, Training, evaluate, evaluation_params, start, train_chunk

STEPS = 4
TEXT = StandardLibrary(batch_size=16, length=8, evaluation_batches=2)
SMALL = ModelConfig(layers=2, d_model=16, attention=Attention(heads=8), feed_forward=Dense(d_ff=32), dropout=0.1)
RUNS = {
    "decoder": (Run(model=SMALL, task=TEXT, training=Training(steps=STEPS)), "unrolled"),
    "scanned": (Run(model=SMALL, task=TEXT, training=Training(steps=STEPS, remat="block", ema=0.9)), "scanned"),
    "accumulated": (Run(model=SMALL, task=TEXT, training=Training(steps=STEPS, micro_batches=2)), "unrolled"),
    "separable": (
        Run(model=SMALL.replace(dropout=None), task=TEXT, training=Training(steps=STEPS, micro_batches=2)),
        "unrolled",
    ),
    "encoder-decoder": (
        Run(model=SMALL.with_encoder(), task=Copy(batch_size=16, form="paired"), training=Training(steps=STEPS)),
        "unrolled",
    ),
    "batch norm": (
        Run(model=SMALL.replace(norm_kind=BatchNorm()), task=TEXT, training=Training(steps=STEPS)),
        "unrolled",
    ),
    "recurrent": (
        Run(model=recurrent_model(LSTM(), layers=2, d_model=16), task=TEXT, training=Training(steps=STEPS)),
        "scanned",
    ),
    "adafactor": (Run(model=SMALL, task=TEXT, optimizer=Adafactor(), training=Training(steps=STEPS)), "scanned"),
    "experts": (
        Run(
            model=SMALL.replace(feed_forward=MixtureOfExperts(experts=4, d_ff=6)),
            task=TEXT,
            training=Training(steps=STEPS),
        ),
        "unrolled",
    ),
    "muon": (Run(model=SMALL, task=TEXT, optimizer=Muon(), training=Training(steps=STEPS)), "unrolled"),
}
MESHES = [Devices(**{axis: n}) for n in (2, 4, 8) for axis in ("data", "fsdp", "tensor")]
MESHES += [Devices(data=2, fsdp=2), Devices(fsdp=2, tensor=2), Devices(data=2, fsdp=2, tensor=2)]
TWO = MESHES[:3]


def name_of(devices):
    """A name that pytest can be asked for."""
    return "none" if devices is None else str(devices).replace("=", "").replace(",", "-")


def enough(devices):
    if devices.count > jax.device_count():
        pytest.skip(f"{devices.count} devices are wanted; there are {jax.device_count()}")


def spread(name, devices):
    """The state, source and compiled chunk of a run on a mesh."""
    run, layout = RUNS[name]
    mesh = devices.mesh()
    shardings = shardings_of(jax.eval_shape(functools.partial(start, layout=layout), run), mesh)
    with jax.set_mesh(mesh):
        state = jax.jit(start, static_argnums=1, out_shardings=shardings)(run, layout)
        source = ShardedSource(device_put_global(run.task.load(), replicated(mesh)), mesh)
        advance = jax.jit(train_chunk, static_argnums=3, out_shardings=(shardings, replicated(mesh)))
        return state, source, advance.lower(state, run, source, STEPS).compile()


@functools.cache
def on_one(name):
    run, layout = RUNS[name]
    source = run.task.load()
    state, metrics = jax.jit(train_chunk, static_argnums=3)(
        jax.jit(start, static_argnums=1)(run, layout), run, source, STEPS
    )
    return jax.device_get((metrics, evaluated(state, run, source)))


def evaluated(state, run, source):
    return jax.jit(lambda state, run, source: evaluate(evaluation_params(state, run), run, source))(state, run, source)


def matches_one_device(name, devices):
    run, _ = RUNS[name]
    state, source, advance = spread(name, devices)
    with jax.set_mesh(devices.mesh()):
        state, metrics = advance(state, run, source)
        found = evaluated(state, run, source)
    wanted = on_one(name)
    tolerance = 2e-3 if name == "muon" else 2e-5
    np.testing.assert_allclose(metrics["loss"], wanted[0]["loss"], rtol=tolerance)
    np.testing.assert_allclose(metrics["gradient_norm"], wanted[0]["gradient_norm"], rtol=50 * tolerance)
    np.testing.assert_allclose(found["validation_loss"], wanted[1]["validation_loss"], rtol=tolerance)


@pytest.mark.long
@pytest.mark.parametrize(
    "devices",
    [TWO[1], *(pytest.param(own, marks=pytest.mark.slow) for own in MESHES if own != TWO[1])],
    ids=name_of,
)
def test_a_mesh_gives_the_numbers_of_one_device(devices):
    enough(devices)
    matches_one_device("decoder", devices)


@pytest.mark.slow
def test_data_parallel_devices_exchange_gradients_once_per_step():
    """Outside of every loop over micro-batches, for a run without dropout; and it gives what one device gives."""
    matches_one_device("separable", TWO[0])
    _, _, advance = spread("separable", TWO[0])
    told = re.findall(r'all-reduce(?:-start)?\(.*op_name="([^"]*)"', advance.as_text())
    assert told
    assert all(name.count("while/body") == 1 for name in told), told


def test_a_config_may_be_on_the_mesh_too():
    """Its numbers then have the sharding of the mesh, as the shapes of a plan have; `shard_map` reads them within."""
    run, layout = RUNS["separable"]
    enough(TWO[0])
    mesh = TWO[0].mesh()
    with jax.set_mesh(mesh), compiling_for("gpu"):
        state, on_mesh = jax.device_put((start(run, layout), jax.tree.map(np.asarray, run)), replicated(mesh))
        source = ShardedSource(device_put_global(run.task.load(), replicated(mesh)), mesh)
        shapes = jax.eval_shape(functools.partial(train_chunk, steps=1), state, on_mesh, source)
    assert jax.tree.map(np.shape, shapes[0]) == jax.tree.map(np.shape, state)


def kinds_and_meshes():
    """Every kind of run on every mesh; on one mesh of two devices each, in turn, in the slow run of the tests."""
    kinds = [name for name in RUNS if name != "decoder"]
    for i, name in enumerate(kinds):
        for j, devices in enumerate((*TWO, MESHES[-1])):
            marks = pytest.mark.slow if j == i % len(TWO) else pytest.mark.exhaustive
            yield pytest.param(name, devices, id=f"{name}-{name_of(devices)}", marks=marks)


@pytest.mark.parametrize(("name", "devices"), list(kinds_and_meshes()))
def test_every_kind_of_run_gives_the_same_numbers_on_a_mesh(name, devices):
    enough(devices)
    matches_one_device(name, devices)


@pytest.mark.exhaustive
def test_eight_devices():
    """The decoder on every mesh, every kind of run on one that is cut three ways, and what a device holds."""
    which = "test_a_mesh or data2-fsdp2-tensor2 or test_a_device"
    words = ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "", "-k", which, __file__]
    eight = os.environ | {"JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run([sys.executable, "-m", "pytest", *words], env=eight, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout


CUTS = {
    "embedding/tokens": ("tensor", "fsdp"),
    "blocks/0/attention/query": ("fsdp", "tensor", None),
    "blocks/0/attention/value": ("fsdp", "tensor", None),
    "blocks/0/attention/out": ("tensor", None, "fsdp"),
    "blocks/0/feed_forward/up": ("fsdp", "tensor"),
    "blocks/0/feed_forward/up_bias": ("tensor",),
    "blocks/0/feed_forward/down": ("tensor", "fsdp"),
    "blocks/0/attention_connection/pre/gain": ("fsdp",),
    "head/matrix": ("fsdp", "tensor"),
}


def test_every_weight_is_sharded_by_its_axes():
    shapes = jax.eval_shape(start, RUNS["decoder"][0])
    cuts = shardings_of(shapes, Devices(data=2).mesh())
    found = {path_name(path): tuple(cut.spec) for path, cut in jax.tree_util.tree_leaves_with_path(cuts.params)}
    assert {name: found[name] for name in CUTS} == CUTS
    stacked = jax.eval_shape(functools.partial(start, layout="scanned"), RUNS["scanned"][0])
    up = shardings_of(stacked, Devices(data=2).mesh()).params.blocks.feed_forward.up
    assert tuple(up.spec) == (None, "fsdp", "tensor")


@pytest.mark.every(7)
@pytest.mark.parametrize("devices", MESHES, ids=name_of)
@pytest.mark.parametrize("name", RUNS)
def test_a_device_holds_its_share_of_weights_and_moments(name, devices):
    enough(devices)
    run, layout = RUNS[name]
    shapes = jax.eval_shape(functools.partial(start, layout=layout), run)
    cuts = jax.tree.leaves(shardings_of(shapes, devices.mesh()))
    leaves = jax.tree.leaves(shapes)
    held = sum(math.prod(cut.shard_shape(leaf.shape)) for leaf, cut in zip(leaves, cuts, strict=True))
    assert held / sum(leaf.size for leaf in leaves) < 1.35 / (devices.fsdp * devices.tensor)


def test_an_axis_that_is_not_divisible_is_whole():
    if jax.device_count() < 2:
        pytest.skip("one device")
    run = Run(model=SMALL.replace(attention=Attention(heads=1), d_model=15), task=TEXT)
    shapes, mesh = jax.eval_shape(start, run), Devices(tensor=2).mesh()
    own, leaf = axes(shapes.params).blocks[0].attention.query, shapes.params.blocks[0].attention.query
    assert weight_spec(own, leaf.shape, mesh) == PartitionSpec("fsdp", None, None)


@pytest.mark.slow
def test_experts_are_divided_along_tensor():
    devices = Devices(tensor=2)
    enough(devices)
    shapes = jax.eval_shape(start, RUNS["experts"][0])
    own, leaf = (tree.blocks[0].feed_forward.up for tree in (axes(shapes.params), shapes.params))
    assert weight_spec(own, leaf.shape, devices.mesh()) == PartitionSpec("tensor", "fsdp", None)
    matches_one_device("experts", devices)


def collectives(devices):
    """How often each kind of communication stands in the compiled chunk."""
    *_, advance = spread("decoder", devices)
    return Counter(re.findall(r" (all-gather|all-reduce|reduce-scatter|all-to-all)(?:-start)?\(", advance.as_text()))


@pytest.mark.slow
def test_data_parallelism_sums_gradients_and_nothing_else():
    assert set(collectives(Devices(data=2))) == {"all-reduce"}


@pytest.mark.long
def test_fsdp_gathers_weights_and_leaves_activations_where_they_are():
    """Without `all_gather_fsdp`, the compiler cuts activations along d_model, and sums them all over."""
    devices = Devices(fsdp=2)
    *_, advance = spread("decoder", devices)
    found, text = collectives(devices), advance.as_text()
    assert found["all-gather"] >= len(jax.tree.leaves(jax.eval_shape(start, RUNS["decoder"][0]).params)) // 2
    summed = " ".join(re.findall(r"= (\S.*?) all-reduce(?:-start)?\(", text))
    assert summed
    assert f"[{TEXT.batch_size // 2},{TEXT.length}," not in summed
    assert found["all-to-all"] <= 1  # of the gradient of the embedded tokens, for rows of a table that is cut
    assert set(found) <= {"all-gather", "all-reduce", "reduce-scatter", "all-to-all"}


@pytest.mark.long
@pytest.mark.parametrize("target", [None, Devices(tensor=2)], ids=name_of)
def test_a_checkpoint_of_one_mesh_is_restored_onto_another_bit_for_bit(tmp_path, target):
    state, *_ = spread("decoder", Devices(fsdp=2))
    kept = Checkpoints(tmp_path)
    kept.save(7, state)
    kept.wait()
    like = jax.eval_shape(start, RUNS["decoder"][0])
    if target is not None:
        like = jax.tree.map(
            lambda leaf, cut: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=cut),
            like,
            shardings_of(like, target.mesh()),
        )
    step, found = kept.restore(like)
    assert step == 7
    jax.tree.map(np.testing.assert_array_equal, found, state)
    if target is not None:
        assert found.params.blocks[0].feed_forward.up.sharding.spec == PartitionSpec("fsdp", "tensor")


@pytest.mark.parametrize(
    ("text", "devices"),
    [("data=2", Devices(data=2)), ("tensor=2, data=3", Devices(data=3, tensor=2)), ("fsdp=4", Devices(fsdp=4))],
)
def test_a_mesh_is_parsed_from_text(text, devices):
    assert parse_devices(text) == devices
    assert parse_devices(str(devices)) == devices


@pytest.mark.parametrize("text", ["", "2", "data", "data=", "date=2", "data=2,data=2", "data=-1", "data=2;fsdp=2"])
def test_a_malformed_mesh_is_refused(text):
    with pytest.raises(UserError, match=f"mesh is '{text}'; expected"):
        parse_devices(text)


def test_too_many_devices_and_no_devices_are_refused():
    with pytest.raises(UserError, match=r"tensor=64, 64 devices; expected at most \d+ devices, which this machine has"):
        Devices(tensor=64).mesh()
    with pytest.raises(UserError, match="data is 0; expected at least 1"):
        Devices(data=0)


class TwoAxes(Parameters):
    """A matrix both of whose axes are sharded along fsdp by the rules."""

    matrix: Float[Array, "d_model d_source"] = param(fan_in="d_model")


@pytest.mark.parametrize(
    ("shape", "fsdp", "expected"),
    [
        ((4, 6), 2, ["matrix: d_source, since d_model is sharded along fsdp"]),
        ((3, 6), 2, ["matrix: d_model, since d_source is sharded along fsdp"]),
        ((4, 6), 1, []),
    ],
)
def test_of_two_axes_on_one_mesh_axis_one_is_replicated_and_listed(shape, fsdp, expected):
    mesh = jax.sharding.AbstractMesh((1, fsdp, 1), ("data", "fsdp", "tensor"))
    assert replicated_axes(TwoAxes(matrix=jax.ShapeDtypeStruct(shape, "float32")), mesh) == expected
    assert replicated_axes(jax.eval_shape(start, RUNS["decoder"][0]).params, mesh) == []
