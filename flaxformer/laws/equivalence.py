"""Laws of equal results: repeated calls, both layouts, with and without compilation, alone and in a group."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flaxformer.laws.calls import forward_pass, loss_and_gradient, one_step, random_key, start_state
from flaxformer.laws.inputs import to_float32
from flaxformer.laws.law import OK, Finding, compare, compare_trees, difference, law, not_applicable, violation
from flaxformer.laws.programs import fast_jit, program_text
from flaxformer.laws.subject import Subject
from flaxformer.laws.where import locate
from flaxformer.model import Transformer
from flaxformer.model.weights import with_layout
from flaxformer.tasks.batch import Batch
from flaxformer.training.loss import forward
from flaxformer.training.loss import loss as loss_of


@law(
    "repetition",
    "the same call gives the same numbers each time",
    "use arguments alone: no global state, clock or NumPy random numbers; draw with context.key",
)
def repetition(subject: Subject) -> Finding:
    """Trace a training step's loss three times, and run it twice."""

    def make_call() -> Callable[[Transformer, Batch, Array], PyTree]:
        def call(weights: Transformer, batch: Batch, key: Array) -> PyTree:  # a new function, which JAX traces again
            value, outcome = loss_of(weights, subject.run, batch, key)
            evaluated = forward(weights, subject.run, batch).output
            return value, evaluated, outcome.aux.losses, outcome.aux.weights

        return call

    arguments = subject.params, subject.batch, random_key()
    calls = [make_call() for _ in range(3)]
    programs = [program_text(jax.make_jaxpr(call)(*arguments)) for call in calls]
    compiled = fast_jit(calls[0])
    first = compiled(*arguments)
    if (gap := _largest_difference(first, compiled(*arguments))) > 0:
        return violation(f"two runs of the same program differ by {gap:.2g}")
    if len(set(programs)) > 1:
        gap = _largest_difference(first, fast_jit(calls[1])(*arguments))
        line = next((a for a, b in zip(*(p.splitlines() for p in programs[:2]), strict=False) if a != b), "")
        if gap > 0:
            return violation(
                f"two traces of the same call differ by {gap:.2g}: the code depends on a value that changes between "
                f"calls, such as the time, NumPy's random numbers or a global (first at "
                f"`{' '.join(line.split())[:100]}`)"
            )
    return OK


def _largest_difference(first: PyTree, second: PyTree) -> float:
    return max(difference(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


@law(
    "layout",
    "unrolled and scanned layers, and activations computed again (remat), give the same outputs, losses and gradients",
    "do not use context.layer in `if`, as an index of a list or as a key; it is traced where layers are scanned",
)
def layout(subject: Subject) -> Finding:
    """Compare both layouts, in evaluation and in training, there also with `remat`."""
    config, weights = subject.config, subject.params
    if not config.layers:
        return not_applicable("the model has no layers")
    scanned = with_layout(weights, "scanned")
    shapes = [jax.tree.map(jnp.shape, params) for params in (scanned, weights)]
    if shapes[0] == shapes[1]:
        if config.layers != config.period or config.distinct_blocks is not None:
            return not_applicable("the layers cannot be scanned")
        twice = subject.original_run.replace(model=config.replace(layers=2 * config.layers))
        return layout.check(Subject(twice, subject.seed))
    unrolled_output, scanned_output = subject.output(), subject.output(params=scanned)
    finding = compare(unrolled_output, scanned_output, "outputs of unrolled and scanned layers", subject.tolerance)
    if finding.is_violated:
        return locate(finding, subject, {}, {"params": scanned})
    training = {"key": random_key()}
    again = subject.run.replace(training=subject.run.training.replace(remat="block"))
    value, gradient = subject.loss_and_gradient
    other, other_gradient = loss_and_gradient(scanned, again, subject.batch, random_key())
    what = "training losses of unrolled layers, and of scanned ones with remat,"
    finding = compare(value, other, what, subject.tolerance)
    if finding.is_violated:
        return locate(finding, subject, training, {"params": scanned} | training)
    what = "gradients of unrolled layers, and of scanned ones with remat,"
    return compare_trees(with_layout(gradient, "scanned"), other_gradient, what, 10 * subject.tolerance)


@law(
    "compilation",
    "the compiled program gives the outputs of the Python code run operation by operation",
    "do not depend on whether an array is traced (isinstance(x, jax.core.Tracer)), and avoid callbacks",
)
def compilation(subject: Subject) -> Finding:
    """Compare the outputs with `jit` and all optimizations to those without `jit`."""
    weights, inputs, arguments = jax.tree.map(jnp.asarray, (subject.params, subject.batch.inputs, subject.arguments))
    with jax.disable_jit():
        eager = forward_pass(weights, subject.config, inputs, arguments)
    output = np.asarray(subject.compiled_program(subject.params, subject.batch.inputs, subject.arguments))
    result = compare(eager, output, "outputs without and with jit", subject.tolerance)
    return locate(result, subject, {"eager": True}, {})


@law(
    "group",
    "a trial in a group of trials gives the numbers of the trial alone",
    "use functions that jax.vmap can map; a callback must compute each trial by itself",
)
def group(subject: Subject) -> Finding:
    """Compare a training step of two seeds, mapped by `vmap`, with the step of each seed alone."""
    runs = [subject.run.replace(seed=seed) for seed in (subject.run.seed, subject.run.seed + 1)]
    batch = subject.training_batch
    with jax.enable_x64(False):
        states = [subject.initial_state, start_state(runs[1])]
        alone = [subject.step(state, run) for state, run in zip(states, runs, strict=True)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *runs)
        many = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        metrics, outputs = fast_jit(jax.vmap(one_step, in_axes=(0, 0, None)))(many, stacked, batch)
    for number, (trial_metrics, output) in enumerate(alone):
        for name in ("loss", "gradient_norm"):
            what = f"{name.replace('_', ' ')} of trial {number} alone and in a group of two"
            finding = compare(trial_metrics[name], metrics[name][number], what)
            if finding.is_violated:
                return finding
        finding = compare(to_float32(output), outputs[number], f"outputs of trial {number} alone and in a group of two")
        if finding.is_violated:
            return finding
    return OK
