"""The training step of a run, compiled for a target: memory, kernels, collectives."""

import contextlib
import functools
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import PyTree

from flaxformer.devices.sharding import Devices, replicated, shardings_of
from flaxformer.model.layout import Layout
from flaxformer.nn.formulations import FormulationChoice, recording
from flaxformer.system.errors import UserError
from flaxformer.targets.collectives import Collective, collectives_of
from flaxformer.targets.compiler import compile_lowered, optimized_text
from flaxformer.targets.texts import host_transfers, parse_bytes_needed
from flaxformer.targets.topology import Target
from flaxformer.targets.traffic import KernelTraffic, kernels_of
from flaxformer.tasks.batch import Source
from flaxformer.tasks.host import Chunk, gather_batches
from flaxformer.tasks.sharded import ShardedSource
from flaxformer.training.offload import HOST, host_shardings
from flaxformer.training.run import Run
from flaxformer.training.run_functions import functions_of
from flaxformer.training.step import start


class TargetMemory(NamedTuple):
    """Bytes on each device, by kind.

    Args:
      weights, moments: of the state, which stays; moments are all arrays of the optimizer, and a mean of the weights.
      data: the data that are on the device.
      logits: the largest product over the vocabulary in the step.
      activations: all other temporary arrays, gradients among them.
    """

    weights: int
    moments: int
    data: int
    logits: int
    activations: int

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self)


class CompiledStep(NamedTuple):
    """A training step as it is compiled for a target.

    Args:
      memory: its parts; `activations` are 0 if the compiler gave up before it knew them.
      needed: bytes that it needs on a device.
      available: bytes that there are.
      fits: True if the compiler and the device have enough.
      choices: formulations of its functions, and why no others.
      collectives: communication per step.
      traffic: bytes of its arguments and results on each device: state and batch.
      seconds: time of the compilation.
      error: the compiler's message if it gave up.
      text: the compiled program.
    """

    memory: TargetMemory
    needed: int
    available: int
    fits: bool
    choices: tuple[FormulationChoice, ...]
    collectives: tuple[Collective, ...]
    traffic: int
    seconds: float
    error: str = ""
    text: str = ""

    @property
    def transfers(self) -> dict[str, int]:
        """Operations of the program that exchange data with the host, by kind."""
        return host_transfers(self.text)

    @property
    def kernels(self) -> list[KernelTraffic]:
        """Kernels of the program with the bytes that they read and write."""
        return kernels_of(self.text)


class Placement(NamedTuple):
    """Devices of one program: one device or a mesh of a target.

    Args:
      target: the devices' kind.
      devices: the devices of one program.
      mesh: the mesh of them; None for one device.
    """

    target: Target
    devices: tuple[jax.Device, ...]
    mesh: Mesh | None

    @classmethod
    def of(cls, target: Target, mesh: Devices | None) -> "Placement":
        """Return the first device of a target, or a mesh of its devices."""
        devices = tuple(target.devices())
        if mesh is None or mesh.count == 1:
            return cls(target, devices[:1], None)
        mesh_devices = devices[: mesh.count]
        return cls(target, mesh_devices, mesh.mesh_of(mesh_devices))

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """A context in which programs are traced and compiled for these devices."""
        with self.target.compiling(), contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh):
            yield

    @property
    def whole(self) -> jax.sharding.Sharding:
        """The sharding of an array that every device has."""
        return SingleDeviceSharding(self.devices[0]) if self.mesh is None else replicated(self.mesh)


def compile_step(
    run: Run,
    placement: Placement,
    layout: Layout = "auto",
    stack_size: int | None = None,
    source: Source | None = None,
    steps: int = 1,
) -> CompiledStep:
    """Compile the training step of a run, or of a group of runs of its structure, for a target.

    Args:
      stack_size: number of runs that are trained together; None for one run alone.
      source: data of the run's task; by default they are loaded.
      steps: number of steps of the program, a chunk as training calls it; its collectives are those of all.

    Raises:
      UserError: the target's compiler is not installed; it cannot compile a step that calls Python, or on a GPU an
        optimizer whose state is on the host.
    """
    if run.training.offload_optimizer and placement.target.device.platform == "gpu":
        raise UserError(
            f"training.offload_optimizer is True, which JAX cannot compile for {placement.target} without the device; "
            "expected False, or a TPU"
        )
    began = time.perf_counter()
    source = run.task.load() if source is None else source
    with placement.compiling(), recording() as choices:
        state, run_shape, data, shardings = _arguments(run, placement, layout, stack_size, source, steps)
        # A new function each time, so that it is traced here, where kernels are recorded.
        function = functions_of(run, stack_size, layout).advance(steps)
        step = jax.jit(lambda *arguments: function(*arguments), out_shardings=shardings, donate_argnums=0)
        traced = step.trace(state, run_shape, data)
        parts = [state.params, (state.optimizer, state.average), data]
        weights, moments, stored = (sum(map(_bytes, jax.tree.leaves(part))) for part in parts)
        logits = logits_bytes(traced.jaxpr.jaxpr, run, placement.mesh)
        with tempfile.TemporaryDirectory() as folder:
            compiled, error = compile_lowered(traced.lower(), folder, str(placement.target))
            text = optimized_text(Path(folder))
    seconds, available = time.perf_counter() - began, placement.target.memory
    held, chosen = weights + moments + stored, tuple(dict.fromkeys(choices))
    if compiled is None:
        needed = parse_bytes_needed(error, held)
        activations = max(0, needed - held - logits)
        memory = TargetMemory(weights, moments, stored, logits, activations)
        return CompiledStep(memory, needed, available, False, chosen, (), 2 * held, seconds, error)
    sizes: Any = compiled.memory_analysis()
    temporary = sizes.temp_size_in_bytes
    read, written = sizes.argument_size_in_bytes, sizes.output_size_in_bytes
    needed = read + written - sizes.alias_size_in_bytes + temporary
    logits = min(logits, temporary)
    memory = TargetMemory(weights, moments, stored, logits, temporary - logits)
    collectives = tuple(collectives_of(text, len(placement.devices))) if placement.mesh is not None else ()
    fits = needed <= available
    return CompiledStep(memory, needed, available, fits, chosen, collectives, read + written, seconds, text=text)


def _arguments(
    run: Run, placement: Placement, layout: Layout, stack_size: int | None, source: Source, steps: int
) -> tuple[PyTree, Run, PyTree, PyTree]:
    """Return shapes of the state, the run and the data on the devices, and the shardings of the results."""

    def on_devices(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype, sharding=placement.whole), tree)

    def add_stack_axis(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        axes = () if stack_size is None else (stack_size,)
        if isinstance(x.sharding, NamedSharding) and axes:
            sharding: object = NamedSharding(x.sharding.mesh, PartitionSpec(None, *x.sharding.spec))
        else:
            sharding = x.sharding
        return jax.ShapeDtypeStruct((*axes, *x.shape), x.dtype, sharding=sharding)

    shapes = on_devices(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, run)))
    state = jax.eval_shape(functools.partial(start, layout=layout), run)
    data = on_devices(_data(source, run, steps))
    if placement.mesh is None:
        # The sharding of a mesh alone has its memory in the type of an array that is only described.
        offloads = run.training.offload_optimizer
        whole = replicated(Devices().mesh_of(placement.devices)) if offloads else placement.whole
        shardings = jax.tree.map(lambda x: whole, state)
    else:
        shardings = shardings_of(state, placement.mesh)
    shardings = shardings.replace(optimizer=host_shardings(run, shardings.optimizer, state.optimizer))
    state = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), state, shardings)
    state = jax.tree.map(add_stack_axis, state)
    if source.on_host:
        data = jax.tree.map(add_stack_axis, data)
    results = None if placement.mesh is None else (jax.tree.map(lambda x: x.sharding, state), placement.whole)
    if placement.mesh is not None:
        data = ShardedSource(data, placement.mesh)
    return state, jax.tree.map(add_stack_axis, shapes), data, results


def _data(source: Source, run: Run, steps: int) -> PyTree:
    """Return the shapes of the data of a chunk; of a source on the host, those of the batches that are copied."""
    if not source.on_host:
        return jax.eval_shape(lambda: source)
    batch = gather_batches(source, run.data_key, 0, 1)
    batches = jax.tree.map(lambda x: jax.ShapeDtypeStruct((steps, *x.shape[1:]), x.dtype), batch)
    first: Any = jax.ShapeDtypeStruct((), jnp.int32)
    return Chunk(first=first, batches=batches)


def _bytes(x: jax.ShapeDtypeStruct) -> int:
    """Bytes of an array on each device; 0 for one in the memory of the host."""
    if x.sharding is not None and x.sharding.memory_kind == HOST:
        return 0
    shape = x.shape if x.sharding is None else x.sharding.shard_shape(x.shape)
    width = x.dtype.itemsize if isinstance(x.dtype, np.dtype) else 8  # a random key
    return math.prod(shape) * width


def logits_bytes(jaxpr: Jaxpr, run: Run, mesh: Mesh | None) -> int:
    """Return the bytes, on each device, of the largest product of a step whose last axis is the vocabulary.

    Without such a product, return those of the largest array: a head may compute its outputs otherwise.
    """
    outputs = run.model.head.outputs(run.model.vocabulary)
    shapes = {leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(start, run).params)}
    shards = 1
    if mesh is not None:
        along = mesh.shape["tensor"]
        shards = mesh.shape["data"] * mesh.shape["fsdp"] * (along if outputs % along == 0 else 1)

    def largest(program: Jaxpr, shards: int, of_products: bool) -> int:
        most = 0
        for equation in program.eqns:
            is_product = equation.primitive.name == "dot_general"
            for variable in equation.outvars if is_product or not of_products else ():
                aval = variable.aval
                if not isinstance(aval, jax.core.ShapedArray) or aval.ndim < 2:
                    continue
                is_logits = aval.shape[-1] == outputs and aval.shape not in shapes
                if is_logits and jnp.issubdtype(aval.dtype, jnp.floating):
                    most = max(most, math.prod(aval.shape) * aval.dtype.itemsize // shards)
            inner = 1 if equation.primitive.name == "shard_map" else shards
            for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
                if _is_program(parameter):
                    program_within = parameter.jaxpr if isinstance(parameter, ClosedJaxpr) else parameter
                    most = max(most, largest(program_within, inner, of_products))
        return most

    # Logits of all tokens that nothing reads are in the traced program, but not in the compiled one.
    live, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return largest(live, shards, True) or largest(live, shards, False)


def _is_program(value: object) -> bool:
    return isinstance(value, Jaxpr | ClosedJaxpr)
