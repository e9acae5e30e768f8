"""Laws about execution: several devices, checkpoints, and the cost that is declared."""

import json
import math
import tempfile
from typing import Any

import jax
import numpy as np

from flaxformer.checkpoint import Checkpoints
from flaxformer.jobs.peak import products_of
from flaxformer.laws.law import OK, Finding, compared, law, not_applicable, violated
from flaxformer.laws.programs import equations, fast_jit, inner_equations
from flaxformer.laws.subject import Subject, one_step
from flaxformer.params import path_name
from flaxformer.sharding import Devices, shardings_of
from flaxformer.struct import canonical
from flaxformer.training.micro_batches import separable
from flaxformer.training.step import forward, start

MESHES = (Devices(data=2), Devices(tensor=2))
"""Ways of cutting a training step in two: by its batch, and by its heads and features."""


@law("devices", "a training step over two devices gives the numbers of one")
def devices(subject: Subject) -> Finding:
    """Compare loss, gradient norm and outputs of a step that is cut in two, by the batch and by the weights."""
    if jax.device_count() < 2:
        return not_applicable("there is one device")
    with jax.enable_x64(False):
        for cut in MESHES:
            found = _cut_in_two(subject, cut)
            if found.verdict != "ok":
                return found
    return OK


def _cut_in_two(subject: Subject, cut: Devices) -> Finding:
    batch, run = subject.training_batch, subject.run
    rows = len(batch.inputs)
    if cut.data > 1 and rows % 2:
        return not_applicable("the batch cannot be cut in two")
    metrics, output = subject.stepped(subject.started, run)
    mesh = cut.mesh()
    with jax.set_mesh(mesh):
        state = jax.device_put(subject.started, shardings_of(jax.eval_shape(start, run), mesh))
        spec = jax.sharding.PartitionSpec(("data", "fsdp"))
        placed = jax.device_put(batch, jax.sharding.NamedSharding(mesh, spec))
        if cut.data > 1:
            found, sharded = fast_jit(one_step)(state, run, placed)
        else:
            found, sharded = {}, fast_jit(forward)(state.params, run, placed).output
    # The weights after the step are not compared: an optimizer may magnify the last bit of a gradient near 0.
    draws = run.model.dropout is not None  # the draws of a sharded batch may be others
    pairs: dict[str, Any] = (
        {} if draws else {name: (metrics[name], found[name]) for name in found if "rate" not in name}
    )
    for name, (one, two) in ({"outputs": (output, sharded)} | pairs).items():
        result = compared(
            np.asarray(one), np.asarray(two), f"{name.replace('_', ' ')} on one device and on two ({cut})"
        )
        if result.is_violated:
            depends = name != "outputs" and cut.data > 1 and separable(run)
            why = " (a loss or a draw of a component depends on the whole batch)" if depends else ""
            return violated(f"{result.words}{why}")
    return OK


@law("checkpoints", "a state that is saved and restored is the same to the last bit, and so is the config")
def checkpoints(subject: Subject) -> Finding:
    """Save the state before training, and read it back."""
    with jax.enable_x64(False), tempfile.TemporaryDirectory() as folder:
        state = subject.started
        kept = Checkpoints(folder)
        kept.save(0, state)
        kept.wait()
        _, again = kept.restore(jax.eval_shape(start, subject.run))
    for (path, one), two in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(again), strict=True):
        a, b = np.asarray(one), np.asarray(two)
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            return violated(f"{path_name(path)} is {a.dtype}{list(a.shape)} and is restored with other numbers")
    config = canonical(subject.run)
    if json.loads(json.dumps(config)) != config:
        return violated("the config is not what is read back of its JSON")
    return OK


COUNTED = 4
"""Operations per result that XLA counts, at most, in what is not a product."""


@law("operations", "the counted parameters and operations are those of the compiled forward pass")
def operations(subject: Subject) -> Finding:
    """Compare the products of the traced program with XLA's count."""
    analysis = subject.compiled.cost_analysis() or {}
    declared, counted = products_of(subject.traced.jaxpr), float(analysis.get("flops", 0))
    steps = list(equations(subject.traced.jaxpr))
    kinds = {equation.primitive.name for equation in steps}
    if not counted or kinds & {"scan", "while"}:
        if "while" in kinds and any(_has_product(one) for one in steps if one.primitive.name == "while"):
            return violated("products in a while loop are counted once; expected lax.scan or fori_loop of fixed length")
        return not_applicable("the compiler gives no count of a loop")
    if not declared <= 1.02 * counted:  # XLA counts additions, exponentials and so on too
        return violated(f"{declared:,} operations in products are declared; {counted:,.0f} of all kinds are compiled")
    others = sum(math.prod(v.aval.shape) for one in steps for v in one.outvars if hasattr(v.aval, "shape"))
    others += sum(math.prod(v.aval.shape) for one in steps for v in one.invars if hasattr(v.aval, "shape"))
    if counted > declared + COUNTED * others:
        return violated(f"{declared:,} operations in products are declared; {counted:,.0f} of all kinds are compiled")
    return OK


def _has_product(equation: Any) -> bool:
    return any(one.primitive.name in ("dot_general", "conv_general_dilated") for one in inner_equations(equation))
