"""Formulations: other ways to compute a function, for a platform, a dtype or a size.

An equation reads as in a paper. Its table has the formulations that may take its place, the preferred one first:

>>> @with_formulations("norm", {"short derivative": Formulation(short_derivative, gain="…", platforms=ACCELERATORS)})
... def standardise(x, epsilon, centre): ...

Which one a program uses is chosen while it is traced, by the platform, the shapes and dtypes of the arguments, and
`using`. All of these are static, and part of the key of JAX's trace cache. `FUNCTIONS` has all tables.
"""

import contextlib
import contextvars
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Literal, NamedTuple, ParamSpec, TypeVar, cast

import jax
import numpy as np

from flaxformer.system.errors import UserError

P = ParamSpec("P")
ResultT = TypeVar("ResultT", covariant=True)
FormulationSetting = Literal["auto", "reference"]
"""The preferred formulation that takes a call, or the equations alone."""
PLATFORMS = {"cpu": "a CPU", "gpu": "an NVIDIA GPU", "tpu": "a TPU"}
ACCELERATORS = ("gpu", "tpu")

logger = logging.getLogger(__name__)


class Platform(NamedTuple):
    """A kind of device.

    Args:
      name: "cpu", "gpu" or "tpu", as `jax.Device.platform` has it.
      is_attached: True if programs can be run on it, and not only compiled for it.
    """

    name: str
    is_attached: bool = True


_TARGET = jax.make_user_context(None)
_SETTING = jax.make_user_context("auto")


def compiling_for(name: str) -> contextlib.AbstractContextManager[object]:
    """Return a context in which programs are traced for a platform that this machine need not have."""
    return _TARGET(Platform(name, is_attached=False))


def using(formulations: FormulationSetting) -> contextlib.AbstractContextManager[object]:
    """Return a context in which programs are traced with formulations, or with the equations alone.

    Raises:
      UserError: another setting.
    """
    if formulations not in ("auto", "reference"):
        raise UserError(f'formulations is "{formulations}"; expected "auto" or "reference"')
    return _SETTING(formulations)


def platform() -> Platform:
    """Return the platform of the program that is being traced.

    It is the compile target's, if the program is compiled for hardware that this machine may not have; else that of the
    mesh; else JAX's default backend.
    """
    if _TARGET.value is not None:
        return _TARGET.value
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    name = jax.default_backend() if device is None else device.platform
    return Platform("gpu" if name in ("cuda", "rocm") else name)


def _no_reason(*arguments: object, **options: object) -> None:
    """No reason: the formulation takes every call."""


class Formulation(NamedTuple):
    """One way to compute a function.

    Args:
      compute: function of the arguments of the equation, with its values and gradients up to rounding.
      gain: what it gains over the equation, and how that was measured.
      platforms: where it is used.
      unsupported_reason: why it does not take a call, in words; None if it does.
      unsuitable_reason: why it is not preferred for a call that it takes, in words; None if it is.
      is_fused: True for one kernel of the device, which holds no intermediate arrays.
    """

    compute: Callable[..., object]
    gain: str
    platforms: tuple[str, ...] = tuple(PLATFORMS)
    unsupported_reason: Callable[..., str | None] = _no_reason
    unsuitable_reason: Callable[..., str | None] = _no_reason
    is_fused: bool = False


class FormulationChoice(NamedTuple):
    """The formulation of one call, and why no earlier one of the table.

    Args:
      function: name of the function.
      formulation: its name in the table; "reference" for the equation.
      call: the arguments in words.
      reasons: of each formulation for the platform that was passed over, in the order of the table.
    """

    function: str
    formulation: str
    call: str
    reasons: tuple[str, ...] = ()


class FormulatedFunction(Generic[P, ResultT]):
    """A function that computes its equation, or a formulation of it.

    Args:
      name: of the function, in plans and logs.
      equation: the function by which formulations are judged.
      formulations: others by name, the preferred one first.
      describe: the arguments in words.
    """

    def __init__(
        self,
        name: str,
        equation: Callable[P, ResultT],
        formulations: dict[str, Formulation],
        describe: Callable[..., str],
    ) -> None:
        self.name, self.equation, self.formulations, self.describe = name, equation, formulations, describe
        functools.update_wrapper(self, equation)
        FUNCTIONS[name] = self

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> ResultT:
        return self.choose(*arguments, **options)(*arguments, **options)

    def choose(self, *arguments: P.args, **options: P.kwargs) -> Callable[P, ResultT]:
        """Return the first formulation that takes the call and suits it, or the equation."""
        reasons: list[str] = []
        here = platform().name
        for name, row in self.formulations.items() if _SETTING.value == "auto" else ():
            if here in row.platforms:
                why = row.unsupported_reason(*arguments, **options) or row.unsuitable_reason(*arguments, **options)
                if why is None:
                    break
                reasons.append(f"{name}: {why}")
        else:
            name = "reference"
        record(FormulationChoice(self.name, name, self.describe(*arguments, **options), tuple(reasons)))
        return self._compute(name)

    def select(self, name: str, *arguments: P.args, **options: P.kwargs) -> Callable[P, ResultT]:
        """Return the formulation of this name, or "reference" for the equation.

        Raises:
          ValueError: it does not take the call.
        """
        if (why := self.refusal(name, *arguments, **options)) is not None:
            raise ValueError(f"implementation is '{name}': {why}")
        record(FormulationChoice(self.name, name, self.describe(*arguments, **options)))
        return self._compute(name)

    def _compute(self, name: str) -> Callable[P, ResultT]:
        return self.equation if name == "reference" else cast(Callable[P, ResultT], self.formulations[name].compute)

    def refusal(self, name: str, *arguments: P.args, **options: P.kwargs) -> str | None:
        """Return why a formulation does not take a call on this platform, in words; None if it does."""
        if name == "reference":
            return None
        row = self.formulations[name]
        if platform().name not in row.platforms:
            return f"{name} needs {' or '.join(PLATFORMS[place] for place in row.platforms)}"
        return row.unsupported_reason(*arguments, **options)


FUNCTIONS: dict[str, FormulatedFunction[..., object]] = {}
"""All functions with formulations, by name, of the modules that are imported."""


def describe_arrays(*arguments: object, **options: object) -> str:
    """Return the dtype and the shape of each array among the arguments."""
    arrays = [x for x in arguments if isinstance(x, jax.Array | np.ndarray)]
    return ", ".join(f"{x.dtype.name} {list(x.shape)}" for x in arrays)


def with_formulations(
    name: str, formulations: dict[str, Formulation], describe: Callable[..., str] = describe_arrays
) -> Callable[[Callable[P, ResultT]], FormulatedFunction[P, ResultT]]:
    """Return a decorator that gives an equation its table of formulations."""
    return lambda equation: FormulatedFunction(name, equation, formulations, describe)


_CHOICES: contextvars.ContextVar[list[FormulationChoice] | None] = contextvars.ContextVar("choices", default=None)


@contextlib.contextmanager
def recording() -> Iterator[list[FormulationChoice]]:
    """Yield a list of the choices that are made, in this thread, while programs are traced."""
    choices: list[FormulationChoice] = []
    token = _CHOICES.set(choices)
    try:
        yield choices
    finally:
        _CHOICES.reset(token)


def record(choice: FormulationChoice) -> None:
    """Record a choice where `recording` asks for it, and log each once."""
    if (choices := _CHOICES.get()) is not None:
        choices.append(choice)
    _log(choice)


def describe_choices(choices: Iterable[FormulationChoice]) -> str:
    """Return the formulations of the functions in words, without those that are equations."""
    names = [f"{choice.function} by {choice.formulation}" for choice in choices if choice.formulation != "reference"]
    return ", ".join(dict.fromkeys(names)) or "equations alone"


@functools.cache
def _log(choice: FormulationChoice) -> None:
    about = (f"{choice.function} by {choice.formulation}", choice.call, *choice.reasons)
    logger.info("%s", "; ".join(filter(None, about)))
