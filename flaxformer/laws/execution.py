"""Laws of execution: several devices, checkpoints, and the counted operations."""

import json
import math
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import JaxprEqn
from jaxtyping import Array

from flaxformer.checkpoint import Checkpoints
from flaxformer.core.canonical import canonical
from flaxformer.core.params import path_name
from flaxformer.devices.sharding import Devices, shardings_of
from flaxformer.laws.calls import one_step
from flaxformer.laws.law import OK, Finding, compare, law, not_applicable, violation
from flaxformer.laws.programs import equations, fast_jit, inner_equations
from flaxformer.laws.subject import Subject
from flaxformer.tasks.batch import Batch
from flaxformer.training import Run
from flaxformer.training.flops import products_of
from flaxformer.training.loss import forward, summed_loss
from flaxformer.training.micro_batches import separable
from flaxformer.training.step import TrainState, start

MESHES = (Devices(data=2), Devices(tensor=2))
"""Meshes of two devices: one divides the batch, the other heads and features."""


@law(
    "devices",
    "a training step over two devices gives the numbers of one",
    "return a loss that is a mean over tokens, or declare mixes_batch = True",
)
def devices(subject: Subject) -> Finding:
    """Compare loss, gradient norm and outputs of a step on two devices, divided by the batch and by the weights.

    Each device gives another `Context.key`. Of a model that draws random numbers by it, the two devices are compared
    with the two halves of the batch on one device, each with the key of its half.
    """
    if jax.device_count() < 2:
        return not_applicable("there is one device")
    with jax.enable_x64(False):
        for layout in MESHES:
            finding = _compare_devices(subject, layout)
            if finding.verdict != "ok":
                return finding
    return OK


def _compare_devices(subject: Subject, layout: Devices) -> Finding:
    batch, run = subject.training_batch, subject.run
    rows = len(batch.inputs)
    if layout.data > 1 and rows % 2:
        return not_applicable("the batch has one row, which cannot be divided")
    metrics, output = subject.step(subject.initial_state, run)
    mesh = layout.mesh()
    with jax.set_mesh(mesh):
        state = jax.device_put(subject.initial_state, shardings_of(jax.eval_shape(start, run), mesh))
        spec = jax.sharding.PartitionSpec(("data", "fsdp"))
        sharded_batch = jax.device_put(batch, jax.sharding.NamedSharding(mesh, spec))
        if layout.data > 1:
            sharded_metrics, sharded_output = fast_jit(one_step)(state, run, sharded_batch)
        else:
            sharded_metrics, sharded_output = {}, fast_jit(forward)(state.params, run, sharded_batch).output
    # The weights after the step are not compared: an optimizer may amplify the last bit of a gradient near 0.
    pairs = {"outputs": (output, sharded_output)}
    pairs |= {name: (metrics[name], sharded) for name, sharded in sharded_metrics.items() if "rate" not in name}
    if layout.data > 1 and separable(run) and subject.draws:
        halves = dict(zip(("loss", "gradient_norm"), _by_halves(subject.initial_state, run, batch), strict=True))
        pairs |= {name: (halves[name], sharded) for name, (_, sharded) in pairs.items() if name in halves}
    for name, (single, divided) in pairs.items():
        what = f"{name.replace('_', ' ')} on one device and on two ({layout})"
        result = compare(np.asarray(single), np.asarray(divided), what)
        if result.is_violated:
            is_from_batch = name != "outputs" and layout.data > 1 and separable(run)
            reason = " (a loss or a draw of a component depends on the whole batch)" if is_from_batch else ""
            return violation(f"{result.words}{reason}")
    return OK


@law(
    "checkpoints",
    "a state and a config that are saved and restored are bitwise equal",
    "let fields be numbers, text, or configs, and the state of an optimizer a pytree of arrays",
)
def checkpoints(subject: Subject) -> Finding:
    """Save the state before training, and restore it."""
    with jax.enable_x64(False), tempfile.TemporaryDirectory() as folder:
        state = subject.initial_state
        saved = Checkpoints(folder)
        saved.save(0, state)
        saved.wait()
        _, restored = saved.restore(jax.eval_shape(start, subject.run))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(restored), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            return violation(f"{path_name(path)} is {a.dtype}{list(a.shape)} and is restored with other numbers")
    config = canonical(subject.run)
    if json.loads(json.dumps(config)) != config:
        return violation("the config differs after a round trip through JSON")
    return OK


@fast_jit
def _by_halves(state: TrainState, run: Run, batch: Batch) -> tuple[Array, Array]:
    """Return the loss of the next step and the norm of its gradient, from the halves of a batch one after another."""
    rows, key = jnp.arange(len(batch.targets)), jax.random.fold_in(run.dropout_key, state.step)
    of = jax.value_and_grad(summed_loss, has_aux=True)
    parts = [jax.tree.map(lambda x, i=i: jnp.split(x, 2)[i], (batch, rows)) for i in (0, 1)]
    halves = [of(state.params, run, part, key, rows=half_rows) for part, half_rows in parts]
    count = sum(half_count for (_, (half_count, _)), _ in halves)
    mean = jax.tree.map(lambda *gradients: sum(gradients) / count, *[gradient for _, gradient in halves])
    trained = run.trainable.mask(state.params)
    mean = jax.tree.map(lambda g, is_trained: g if is_trained else jnp.zeros_like(g), mean, trained)
    return sum(total for (total, _), _ in halves) / count, optax.tree.norm(mean)


COUNTED = 4
"""Largest number of operations per result that XLA counts in operations other than products."""


@law(
    "operations",
    "the counted parameters and operations are those of the compiled forward pass",
    "use lax.scan or lax.fori_loop of a fixed length in place of lax.while_loop",
)
def operations(subject: Subject) -> Finding:
    """Compare the operations in products of the traced program with XLA's count."""
    analysis = subject.compiled_program.cost_analysis() or {}
    declared, counted = products_of(subject.traced_program.jaxpr), float(analysis.get("flops", 0))
    steps = list(equations(subject.traced_program.jaxpr))
    kinds = {equation.primitive.name for equation in steps}
    if not counted or kinds & {"scan", "while"}:
        if "while" in kinds and any(_has_product(equation) for equation in steps if equation.primitive.name == "while"):
            return violation(
                "products in a while loop are counted once; expected lax.scan or fori_loop of fixed length"
            )
        return not_applicable("the compiler does not count operations in a loop")
    if not declared <= 1.02 * counted:  # XLA counts additions, exponentials and so on too
        return violation(f"{declared:,} operations in products are declared; {counted:,.0f} of all kinds are compiled")
    entries = sum(math.prod(v.aval.shape) for equation in steps for v in equation.outvars if hasattr(v.aval, "shape"))
    entries += sum(math.prod(v.aval.shape) for equation in steps for v in equation.invars if hasattr(v.aval, "shape"))
    if counted > declared + COUNTED * entries:
        return violation(f"{declared:,} operations in products are declared; {counted:,.0f} of all kinds are compiled")
    return OK


def _has_product(equation: JaxprEqn) -> bool:
    return any(inner.primitive.name in ("dot_general", "conv_general_dilated") for inner in inner_equations(equation))
