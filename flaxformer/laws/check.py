"""Checking: every law on a run's model, and the scale of its activations and gradients at initialisation."""

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import flaxformer
from flaxformer.diagnostics import diagnose
from flaxformer.laws import (
    decoding,
    equivalence,
    execution,
    fields,
    initial_loss,
    precision,
    sequences,
    token_mixing,
    weights,
)
from flaxformer.laws.law import Finding, not_applicable, violated
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.struct import UserError, did_you_mean
from flaxformer.training import Run

LAWS = {
    one.name: one
    for one in (
        sequences.causality,
        sequences.padding,
        sequences.batch,
        token_mixing.tokens,
        token_mixing.order,
        decoding.decoding,
        initial_loss.start,
        weights.weights,
        fields.fields,
        weights.gradients,
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
"""Every law by name, in the order in which they are checked."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one law on one model."""

    law: str
    finding: Finding
    seconds: float


def check(run: Run, names: Sequence[str] = (), begin: Callable[[str], None] = lambda name: None) -> Iterator[Result]:
    """Check laws, all or those named, on the model of a run, and yield each result as it is found.

    Args:
      begin: called with the name of each law before it is checked.

    Raises:
      UserError: no law has such a name, or a component is exempt from a law that does not exist.
    """
    yield from check_subject(Subject(run), names, begin)


def check_subject(
    subject: Subject, names: Sequence[str] = (), begin: Callable[[str], None] = lambda name: None
) -> Iterator[Result]:
    """`check`, of a subject; it keeps what several laws and `scales` need."""
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
            finding = _checked(name, subject, errors) if exempt is None else not_applicable(exempt)
            yield Result(name, finding, time.perf_counter() - began)


def check_names(names: Sequence[str]) -> None:
    """Refuse names that no law has.

    Raises:
      UserError: with the nearest name.
    """
    for name in names:
        if name not in LAWS:
            raise UserError(f"law is '{name}'{did_you_mean(name, list(LAWS))}")


PACKAGE = str(Path(flaxformer.__file__).parent)


def _checked(name: str, subject: Subject, errors: dict[str, str]) -> Finding:
    """Check one law. An error in a component is a violation that says where, and is reported once."""
    try:
        return LAWS[name].check(subject)
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [one for one in frames if not one.filename.startswith(PACKAGE) and "site-packages" not in one.filename]
        where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
        words = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{where}"
        first = errors.setdefault(words, name)
        return violated(words if first == name else f"the same error as in {first}")


def distinct_models(runs: Sequence[tuple[str, Run]]) -> list[tuple[str, Run]]:
    """The first run, with its name, of each structure of model, task and the user's own training components."""
    found: dict[Any, tuple[str, Run]] = {}
    for name, run in runs:
        own = tuple(
            one for one in (run.optimizer, *run.loss_terms) if not type(one).__module__.startswith("flaxformer")
        )
        found.setdefault(jax.tree.structure((run.model, run.task, own)), (name, run))
    return list(found.values())


def scales(run: Run | Subject) -> dict[str, np.ndarray]:
    """Return, by place, the root mean square of each activation and the norm of each gradient at initialisation.

    Places within the layers have an entry per layer.
    """
    subject = run if isinstance(run, Subject) else Subject(run)
    with jax.enable_x64(False):
        found = jax.device_get(_diagnosed(subject.started, subject.run, subject.training_batch))
    gradients = {
        f"gradient of {place}": value
        for place, value in found.gradient_norm.items()
        if place.count("/") <= 1 and place.startswith(("blocks", "head", "embedding"))
    }
    return {f"activation {place}": value for place, value in found.rms.items()} | gradients


_diagnosed = fast_jit(getattr(diagnose, "__wrapped__"))  # noqa: B009 (mypy does not know it)
