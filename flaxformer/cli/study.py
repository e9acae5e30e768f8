"""Study of a command: of a file as the command line changes it, or of a folder, from its copy of the file."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flaxformer.cli.arguments import Replicate, Verify
from flaxformer.cli.arguments.studies import StudyArguments
from flaxformer.cli.parsing import last_command
from flaxformer.core.overrides import override
from flaxformer.devices.sharding import parse_devices
from flaxformer.runner.execution import Execution
from flaxformer.store.line_forms import LAUNCHES
from flaxformer.store.store import Store, read_lines
from flaxformer.study.copied_code import execute_copy
from flaxformer.study.declare import Study
from flaxformer.study.load import load_study
from flaxformer.study.seeds import parse_seeds
from flaxformer.study.suggest import Search
from flaxformer.system.digests import JsonObject
from flaxformer.system.errors import UserError
from flaxformer.system.user_code import path_of_copy


def load(arguments: StudyArguments) -> tuple[Study, Execution]:
    """The study as the command line changes it, and the settings of its execution."""
    seeds = None if arguments.seeds is None else parse_seeds(arguments.seeds)
    study = load_study(arguments.file, arguments.overrides, seeds)
    names = [field.name for field in dataclasses.fields(Execution) if hasattr(arguments, field.name)]
    settings = {name: getattr(arguments, name) for name in names}
    return study, Execution(**settings | {"mesh": arguments.mesh and parse_devices(arguments.mesh)})


def copied_study(store: Store, arguments: Replicate | Verify, seeds: Sequence[int]) -> Study:
    """Return the study of a file that the user names, or of the last copy of its file in the folder, if it is trusted.

    Overrides that the folder records, and not the user, cannot make code of another folder be executed either.

    Args:
      store: the study's folder.
      arguments: the file, None for the copy; overrides of the baseline, by default the overrides of the last command.
      seeds: the seeds.

    Raises:
      UserError: there is no copy, it was changed or is not trusted, or the study's arms depend on its results.
    """
    launches = read_lines(store.root / LAUNCHES)
    trust_code, overrides = arguments.trust_code, arguments.overrides
    if arguments.file is None:
        copy = copy_of_file(store, launches)
        why = "its study is trained again (--file FILE names a file of yours instead)"
        study = execute_copy(store.root, copy, why, trust_code, lambda file: load_study(file, overrides, seeds))
    else:
        study = load_study(arguments.file, overrides, seeds)
    if isinstance(study, Search):
        raise UserError(f"study '{study.name}' is a search, whose arms depend on its results; expected fixed arms")
    recorded = () if overrides else tuple(getattr(last_command(launches), "overrides", ()))
    baseline = override(study.baseline, recorded)
    init, of_file = baseline.init, study.baseline.init
    if init is not None and (of_file is None or init != of_file or init.trust_code != of_file.trust_code):
        baseline = baseline.replace(init=init.replace(trust_code=trust_code))
    return dataclasses.replace(study, baseline=baseline) if recorded else study


def copy_of_file(store: Store, launches: Sequence[JsonObject]) -> Path:
    """Return the path of the last copy of the study's file; nothing is executed."""
    known = [launch for launch in launches if launch.get("file") and launch.get("code")]
    copies = [store.root / str(path_of_copy(launch["code"], Path(launch["file"]))) for launch in known]
    file = next((path for path in reversed(copies) if path.is_file()), None)
    if file is None:
        raise UserError(
            f"{store.root} holds no copy of the study's file (code/); give the file with --file, or train it with "
            "'flaxformer run' first"
        )
    return file
