"""Checks of all laws on a run's model, and the scale of its activations and gradients at initialisation."""

import dataclasses
import inspect
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

import flaxformer
from flaxformer.diagnostics import diagnose
from flaxformer.laws import (
    decoding,
    edits,
    equivalence,
    execution,
    fields,
    initial_loss,
    padding,
    precision,
    randomness,
    sequences,
    token_mixing,
    training,
    updates,
    weights,
)
from flaxformer.laws.law import Finding, Law, not_applicable, violation
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.training import Run

LAWS: dict[str, Law[Subject]] = {
    law.name: law
    for law in (
        sequences.causality,
        padding.padding,
        sequences.batch,
        token_mixing.tokens,
        token_mixing.order,
        decoding.decoding,
        edits.edits,
        initial_loss.start,
        weights.weights,
        fields.fields,
        weights.gradients,
        training.data,
        training.loss,
        training.rate,
        updates.updates,
        randomness.draws,
        precision.precision,
        equivalence.repetition,
        equivalence.layout,
        equivalence.compilation,
        equivalence.group,
        weights.parameters,
        execution.devices,
        execution.checkpoints,
        execution.operations,
    )
}
"""Every law by name, in the order of the checks."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one law on one model."""

    law: str
    finding: Finding
    seconds: float


def check(run: Run, names: Sequence[str] = (), begin: Callable[[str], None] = lambda name: None) -> Iterator[Result]:
    """Check laws on the model of a run, and yield each result as soon as it is known.

    Args:
      run: the run.
      names: names of the laws; all by default.
      begin: called with the name of each law before it is checked.

    Raises:
      UserError: a name is not that of a law, or a component is exempt from a law that does not exist.
    """
    yield from check_subject(Subject(run), names, begin)


def check_subject(
    subject: Subject, names: Sequence[str] = (), begin: Callable[[str], None] = lambda name: None
) -> Iterator[Result]:
    """Check laws on a subject, as `check` does; the subject caches values that several laws and `scales` use."""
    check_names(names)
    for component in subject.components:
        for name in getattr(component, "exempt_from", {}):
            if name not in LAWS:
                raise UserError(
                    f"{type(component).__name__}.exempt_from names '{name}'{did_you_mean(name, list(LAWS))}"
                )
    errors: dict[str, str] = {}
    with jax.enable_x64(True):
        for name in names or LAWS:
            begin(name)
            began = time.perf_counter()
            exempt = subject.exemption(name)
            finding = _check_law(name, subject, errors) if exempt is None else not_applicable(exempt)
            yield Result(name, finding, time.perf_counter() - began)


def check_names(names: Sequence[str]) -> None:
    """Check that every name is that of a law.

    Raises:
      UserError: with the nearest name.
    """
    for name in names:
        if name not in LAWS:
            raise UserError(f"law is '{name}'{did_you_mean(name, list(LAWS))}")


PACKAGE = str(Path(flaxformer.__file__).parent)


def _check_law(name: str, subject: Subject, errors: dict[str, str]) -> Finding:
    """Check one law; an error in a component is a violation with its location.

    `errors` has the law in which each error was reported, so that a repeated one is not reported in full.
    """
    try:
        return LAWS[name].check(subject)
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        users = [x for x in frames if not x.filename.startswith(PACKAGE) and "site-packages" not in x.filename]
        where = f" ({Path(users[-1].filename).name}, line {users[-1].lineno}, in {users[-1].name})" if users else ""
        words = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{where}"
        first = errors.setdefault(words, name)
        return violation(words if first == name else f"the same error as in {first}")


def distinct_models(runs: Sequence[tuple[str, Run]]) -> list[tuple[str, Run]]:
    """Return one run, with its name, for each structure of model, task and user-defined training components."""
    distinct: dict[jax.tree_util.PyTreeDef, tuple[str, Run]] = {}
    for name, run in runs:
        user_components = tuple(
            component
            for component in (run.optimizer, *run.loss_terms)
            if not type(component).__module__.startswith("flaxformer")
        )
        distinct.setdefault(jax.tree.structure((run.model, run.task, user_components)), (name, run))
    return list(distinct.values())


def scales(run: Run | Subject) -> dict[str, np.ndarray]:
    """Return the root mean square of each activation, and the norm of each gradient, at initialisation, by place.

    Arrays of places within the layers have one entry per layer.
    """
    subject = run if isinstance(run, Subject) else Subject(run)
    with jax.enable_x64(False):
        diagnostics = jax.device_get(_diagnose(subject.initial_state, subject.run, subject.training_batch))
    gradients = {
        f"gradient of {place}": value
        for place, value in diagnostics.gradient_norm.items()
        if place.count("/") <= 1 and place.startswith(("blocks", "head", "embedding"))
    }
    return {f"activation {place}": value for place, value in diagnostics.rms.items()} | gradients


_diagnose = fast_jit(inspect.unwrap(diagnose))
