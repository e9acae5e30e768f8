"""Laws of equal results: of a repeated call, of both layouts, with and without compilation, alone and in a group."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer.laws.inputs import narrow
from flaxformer.laws.law import OK, Finding, compared, difference, law, not_applicable, violated
from flaxformer.laws.programs import fast_jit, program_text
from flaxformer.laws.subject import Subject, forward_pass, one_step, random_key, start_state
from flaxformer.laws.where import located
from flaxformer.model.transformer import with_layout
from flaxformer.training.step import forward
from flaxformer.training.step import loss as loss_of


@law("repetition", "the same call gives the same numbers each time")
def repetition(subject: Subject) -> Finding:
    """Trace a training step's loss three times, and run it twice."""

    def traced() -> Any:
        def call(weights: Any, batch: Any, key: Any) -> Any:  # a function of its own, so that nothing is reused
            value, outcome = loss_of(weights, subject.run, batch, key)
            evaluated = forward(weights, subject.run, batch).output
            return value, evaluated, outcome.aux.losses, outcome.aux.weights

        return call

    arguments = subject.params, subject.batch, random_key()
    calls = [traced() for _ in range(3)]
    programs = [program_text(jax.make_jaxpr(call)(*arguments)) for call in calls]
    compiled = fast_jit(calls[0])
    first = compiled(*arguments)
    if (gap := _largest_difference(first, compiled(*arguments))) > 0:
        return violated(f"two runs of the same program differ by {gap:.2g}")
    if len(set(programs)) > 1:
        gap = _largest_difference(first, fast_jit(calls[1])(*arguments))
        line = next((a for a, b in zip(*(p.splitlines() for p in programs[:2]), strict=False) if a != b), "")
        if gap > 0:
            return violated(
                f"two traces of the same call differ by {gap:.2g}: the code reads what changes between calls, such as "
                f"the time, NumPy's random numbers or a global (first at `{' '.join(line.split())[:100]}`)"
            )
    return OK


def _largest_difference(one: Any, two: Any) -> float:
    return max(difference(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))


@law("layout", "unrolled and scanned layers give the same outputs and training losses")
def layout(subject: Subject) -> Finding:
    """Compare both layouts, in evaluation and in training."""
    config, weights = subject.config, subject.params
    if not config.layers:
        return not_applicable("the model has no layers")
    scanned = with_layout(weights, "scanned")
    is_same: bool = jax.tree.structure(scanned) == jax.tree.structure(weights)  # type: ignore[operator]
    if is_same:
        if config.layers != config.period or config.distinct_blocks is not None:
            return not_applicable("the layers cannot be scanned")
        twice = subject.given_run.replace(model=config.replace(layers=2 * config.layers))
        return layout.check(Subject(twice, subject.seed))
    one, two = subject.output(), subject.output(params=scanned)
    found = compared(one, two, "outputs of unrolled and scanned layers", subject.tolerance)
    if found.is_violated:
        return located(found, subject, {}, {"params": scanned})
    one, two = subject.loss(weights), subject.loss(scanned)
    found = compared(one, two, "training losses of unrolled and scanned layers", subject.tolerance)
    training = {"key": random_key()}
    return located(found, subject, training, {"params": scanned} | training)


@law("compilation", "the compiled program gives the outputs of the Python code run operation by operation")
def compilation(subject: Subject) -> Finding:
    """Compare `jit`, with all optimizations, and no `jit`."""
    weights, inputs, given = jax.tree.map(jnp.asarray, (subject.params, subject.batch.inputs, subject.given))
    with jax.disable_jit():
        eager = forward_pass(weights, subject.config, inputs, given)
    found = np.asarray(subject.compiled(subject.params, subject.batch.inputs, subject.given))
    result = compared(eager, found, "outputs without and with jit", subject.tolerance)
    return located(result, subject, {"eager": True}, {})


@law("group", "a trial in a group of trials gives the numbers of the trial alone")
def group(subject: Subject) -> Finding:
    """Take a training step of two seeds together, mapped, and of each alone."""
    runs = [subject.run.replace(seed=seed) for seed in (subject.run.seed, subject.run.seed + 1)]
    batch = subject.training_batch
    with jax.enable_x64(False):
        states = [subject.started, start_state(runs[1])]
        alone = [subject.stepped(state, run) for state, run in zip(states, runs, strict=True)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *runs)
        many = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        metrics, outputs = fast_jit(jax.vmap(one_step, in_axes=(0, 0, None)))(many, stacked, batch)
    for number, (own, output) in enumerate(alone):
        for name in ("loss", "gradient_norm"):
            what = f"{name.replace('_', ' ')} of trial {number} alone and in a group of two"
            found = compared(own[name], metrics[name][number], what)
            if found.is_violated:
                return found
        found = compared(narrow(output), outputs[number], f"outputs of trial {number} alone and in a group of two")
        if found.is_violated:
            return found
    return OK
