"""Laws about execution: several devices, checkpoints, and the cost that is declared."""

import tempfile
from typing import Any

import jax
import numpy as np

from flaxformer import model
from flaxformer.checkpoint import Checkpoints
from flaxformer.jobs.peak import products_of
from flaxformer.laws.law import OK, Finding, compared, compared_trees, law, not_applicable, violated
from flaxformer.laws.subject import Subject
from flaxformer.sharding import Devices, shardings_of
from flaxformer.tasks.base import whole
from flaxformer.training.micro_batches import separable
from flaxformer.training.step import start, train_step


def _single(tree: Any) -> Any:
    """Arrays in single precision, as training has them."""

    def narrow(x: Any) -> np.ndarray:
        x = np.asarray(x)
        return x.astype(np.float32) if x.dtype == np.float64 else x

    return jax.tree.map(narrow, tree)


@law("devices", "a training step over two devices gives the numbers of one")
def devices(subject: Subject) -> Finding:
    """Compare the weights after one step, with the batch cut in two."""
    if jax.device_count() < 2:
        return not_applicable("there is one device")
    if subject.run.model.dropout is not None:
        return not_applicable("dropout draws for a whole batch")
    with jax.enable_x64(False):
        batch = whole(subject.run.task.load().batch(jax.random.key(0), 0))
        if len(batch.inputs) % 2:
            return not_applicable("the batch cannot be cut in two")
        alone, metrics = jax.jit(train_step)(jax.jit(start)(subject.run), subject.run, batch)
        mesh = Devices(data=2).mesh()
        shardings = shardings_of(jax.eval_shape(start, subject.run), mesh)
        with jax.set_mesh(mesh):
            state = jax.jit(start, out_shardings=shardings)(subject.run)
            cut = jax.device_put(batch, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
            shared, found = jax.jit(train_step)(state, subject.run, cut)
    del alone, shared  # an optimizer may magnify a last bit of a gradient near 0: the loss and the norm are compared
    pairs = {name: (np.asarray(metrics[name]), np.asarray(found[name])) for name in ("loss", "gradient_norm")}
    for name, (one, two) in pairs.items():
        result = compared(one, two, f"{name.replace('_', ' ')} on one device and on two")
        if result.verdict != "ok":
            kind = "" if separable(subject.run) else " (the model's examples depend on each other)"
            return violated(f"{result.words}{kind}")
    return OK


@law("checkpoints", "a state that is saved and restored is the same to the last bit")
def checkpoints(subject: Subject) -> Finding:
    """Save the state before training, and read it back."""
    with jax.enable_x64(False), tempfile.TemporaryDirectory() as folder:
        state = jax.jit(start)(subject.run)
        kept = Checkpoints(folder)
        kept.save(0, state)
        kept.wait()
        _, again = kept.restore(jax.eval_shape(start, subject.run))
        same = jax.tree.map(lambda a, b: bool(np.array_equal(np.asarray(a), np.asarray(b))), state, again)
    return OK if all(jax.tree.leaves(same)) else compared_trees(_single(state), _single(again), "states")


@law("operations", "the operations counted by formula are those of the compiled forward pass")
def operations(subject: Subject) -> Finding:
    """Compare the products of the traced program with XLA's count."""
    config, names = subject.config, ("source", "source_valid")
    given = {name: _single(subject.batch.given[name]) for name in names if subject.batch.given.get(name) is not None}  # type: ignore[literal-required]

    def forward(params: Any, inputs: Any) -> Any:
        return model.apply(params, config, inputs, **given)

    with jax.enable_x64(False):
        arguments = _single(subject.params), _single(subject.batch.inputs)
        traced = jax.make_jaxpr(forward)(*arguments).jaxpr
        analysis = jax.jit(forward).lower(*arguments).compile().cost_analysis() or {}
    declared, counted = products_of(traced), float(analysis.get("flops", 0))
    if not counted or _has_loop(traced):
        return not_applicable("the compiler gives no count of a loop")
    # XLA counts additions, exponentials and so on too.
    if not declared <= 1.02 * counted:
        return violated(f"{declared:,} operations in products are declared; {counted:,.0f} of all kinds are compiled")
    return OK


def _has_loop(jaxpr: Any) -> bool:
    return any(eqn.primitive.name in ("scan", "while") for eqn in jaxpr.eqns)


LAWS = (devices, checkpoints, operations)
