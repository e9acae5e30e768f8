"""Checking: every law on a run's model, and the scale of its activations and gradients at the start."""

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from flaxformer.diagnostics import diagnose
from flaxformer.laws import execution, numbers, sequences
from flaxformer.laws.law import Finding, not_applicable, violated
from flaxformer.laws.subject import Subject
from flaxformer.struct import UserError, did_you_mean
from flaxformer.tasks.base import whole
from flaxformer.training import Run, start

LAWS = {one.name: one for one in (*sequences.LAWS, *numbers.LAWS, *execution.LAWS)}
"""Every law by name, in the order in which they are checked."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What one law found of one model."""

    law: str
    finding: Finding
    seconds: float


def check(run: Run, names: Sequence[str] = (), begin: Callable[[str], None] = lambda name: None) -> Iterator[Result]:
    """Check laws, all or those named, on the model of a run; each result as it is found.

    Raises:
      UserError: no law has such a name.
    """
    for name in names:
        if name not in LAWS:
            raise UserError(f"law is '{name}'{did_you_mean(name, list(LAWS))}")
    subject = Subject(run)
    with jax.enable_x64(True):
        jax.block_until_ready((subject.params, subject.batch))
        for name in names or LAWS:
            begin(name)
            began = time.perf_counter()
            exempt = subject.exemption(name)
            finding = _checked(name, subject) if exempt is None else not_applicable(exempt)
            yield Result(name, finding, time.perf_counter() - began)


def _checked(name: str, subject: Subject) -> Finding:
    """What a law finds; an error in a component is a violation that says where."""
    try:
        return LAWS[name].check(subject)
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            frame for frame in frames if "flaxformer" not in frame.filename and "site-packages" not in frame.filename
        ]
        where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        return violated(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{where}")


def distinct_models(runs: Sequence[tuple[str, Run]]) -> list[tuple[str, Run]]:
    """The first run of each different model, structure and task, with its name."""
    found: dict[Any, tuple[str, Run]] = {}
    for name, run in runs:
        found.setdefault(jax.tree.structure((run.model, run.task)), (name, run))
    return list(found.values())


def scales(run: Run) -> dict[str, np.ndarray]:
    """At the start, by place: the root mean square of each activation and the norm of each gradient, per layer."""
    batch = whole(run.task.load().batch(jax.random.key(0), 0))
    found = jax.device_get(diagnose(jax.jit(start)(run), run, batch))
    gradients = {
        f"gradient of {place}": value
        for place, value in found.gradient_norm.items()
        if place.count("/") <= 1 and place.startswith(("blocks", "head", "embedding"))
    }
    return {f"activation {place}": value for place, value in found.rms.items()} | gradients
