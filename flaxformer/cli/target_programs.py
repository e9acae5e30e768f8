"""Programs of a job or a study, each compiled for a target in a process that the compiler may end."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Self

import jax

from flaxformer.cli.arguments import Plan
from flaxformer.cli.child_process import ChildDiedError, ChildProcess
from flaxformer.cli.study import load as load_study
from flaxformer.core.overrides import override
from flaxformer.core.paths import replace_at
from flaxformer.devices.sharding import Devices
from flaxformer.nn.formulations import using
from flaxformer.runner.stages import plan_of
from flaxformer.study.declare import Study
from flaxformer.study.load import load_module
from flaxformer.study.program_groups import ProgramGroup, groups
from flaxformer.system.errors import UserError
from flaxformer.targets.compiler import NotCompiled
from flaxformer.targets.program import CompiledStep, Placement, compile_step
from flaxformer.targets.topology import parse_target
from flaxformer.tasks.batch import Source
from flaxformer.training.run import Run


@functools.cache
def load(arguments: Plan) -> Run | Study:
    """Return the file's run or study, as the command line changes it."""
    module = load_module(arguments.file, "defines `study` or `run`")
    if isinstance(getattr(module, "study", None), Study):
        declared, execution = load_study(arguments)
        return plan_of(declared, dataclasses.replace(execution, mesh=None, devices=None)).study
    if isinstance(run := getattr(module, "run", None), Run):
        return override(run, arguments.overrides)
    raise UserError(f"'{arguments.file}' defines neither `study` nor `run`; expected Study(...) or Run(...)")


@functools.cache
def program_groups(arguments: Plan) -> tuple[ProgramGroup, ...]:
    """Return the programs of the file's study."""
    study = load(arguments)
    assert isinstance(study, Study)
    return tuple(groups(study.trials()))


class Compiler:
    """Compiles the programs of a command; a program that ends the compiler's process is `NotCompiled`."""

    def __init__(self, arguments: Plan) -> None:
        self.arguments, self.has_failed = arguments, False
        self._process = ChildProcess()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.__exit__(*error)

    def compile(
        self,
        mesh: Devices | None,
        changes: Mapping[str, object] | None = None,
        group: int | None = None,
        number: int | None = None,
    ) -> CompiledStep | NotCompiled:
        """Compile the file's run, or a program of its study.

        Args:
          changes: values of the run by path.
          group: place of the program among the study's programs; None for a run.
          number: number of runs that are trained together.
        """
        try:
            program = self._process.call(_compile, self.arguments, mesh, dict(changes or {}), group, number)
        except ChildDiedError as error:
            program = NotCompiled(f"the compiler ended its process ({error})")
        self.has_failed |= isinstance(program, NotCompiled)
        return program


def _compile(
    arguments: Plan, mesh: Devices | None, changes: dict[str, object], group: int | None, number: int | None
) -> CompiledStep | NotCompiled:
    """Compile a program in this process, see `Compiler.compile`."""
    assert arguments.target is not None
    jax.config.update("jax_platforms", "cpu")  # the data are read on the host, and attached devices are left alone
    placement = Placement.of(parse_target(arguments.target), mesh)  # raises without the compiler
    run = load(arguments) if group is None else program_groups(arguments)[group].example
    assert isinstance(run, Run)
    run = replace_at(run, changes)
    try:
        with using(arguments.formulations):
            return compile_step(run, placement, arguments.layout, number, _source(run))
    except jax.errors.JaxRuntimeError as error:
        return NotCompiled(f"the compiler failed ({str(error).partition(chr(10))[0]})")


_SOURCES: dict[object, Source] = {}


def _source(run: Run) -> Source:
    """Return the data of a run, which are loaded once."""
    if run.task not in _SOURCES:
        _SOURCES[run.task] = run.task.load()
    return _SOURCES[run.task]
