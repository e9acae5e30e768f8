"""Reading of a study as the command line changes it."""

import dataclasses

from flaxformer.cli.arguments.studies import StudyArguments
from flaxformer.devices.sharding import parse_devices
from flaxformer.runner.execution import Execution
from flaxformer.study.declare import Study
from flaxformer.study.load import load_study
from flaxformer.study.seeds import parse_seeds


def load(arguments: StudyArguments) -> tuple[Study, Execution]:
    """The study as the command line changes it, and the settings of its execution."""
    seeds = None if arguments.seeds is None else parse_seeds(arguments.seeds)
    study = load_study(arguments.file, arguments.overrides, seeds)
    names = [field.name for field in dataclasses.fields(Execution) if hasattr(arguments, field.name)]
    settings = {name: getattr(arguments, name) for name in names}
    return study, Execution(**settings | {"mesh": arguments.mesh and parse_devices(arguments.mesh)})
