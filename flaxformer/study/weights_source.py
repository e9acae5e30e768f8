"""Places of trained weights: a training job, a trial of a study, or a checkpoint of Hugging Face."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.steps import step_numbers
from flaxformer.checkpoint.weights import read_weights
from flaxformer.config import ModelConfig
from flaxformer.interop import huggingface
from flaxformer.interop.huggingface.files import HUB, find_checkpoint, is_checkpoint
from flaxformer.model.weights import Transformer
from flaxformer.store import remote
from flaxformer.store.declaration import Declaration
from flaxformer.store.places import weights_folder
from flaxformer.store.store import Store
from flaxformer.study.copied_code import load_run
from flaxformer.system.errors import UserError
from flaxformer.system.objects import url_of
from flaxformer.system.wording import join_words
from flaxformer.training.run import Run


def parse_labels(text: str) -> dict[str, str]:
    """Return the level of each axis that a text such as "norm=pre,width=64" names.

    Raises:
      UserError: a word is not AXIS=LEVEL.
    """
    words = [word for word in text.split(",") if word]
    if wrong := [word for word in words if "=" not in word]:
        raise UserError(f"arm is '{text}', where '{wrong[0]}' has no =; expected AXIS=LEVEL, such as norm=pre,width=64")
    return {axis.strip(): level.strip() for axis, _, level in (word.partition("=") for word in words)}


def trial_name(study: Declaration, labels: Mapping[str, str], seed: int | None) -> str:
    """Return the name of the trial of a declaration with these labels.

    Args:
      study: the declaration.
      labels: level of each axis; those of axes that leave one arm may be omitted.
      seed: seed of the trial; None is the study's first.

    Raises:
      UserError: no arm or several arms have these labels, or the study has no such seed.
    """
    seed = study.seeds[0] if seed is None else seed
    if seed not in study.seeds:
        raise UserError(f"seed is {seed}; expected one of {join_words(map(str, study.seeds))}")
    at_seed = [trial for trial in study.trials if trial.seed == seed]
    labels = {name: str(level) for name, level in labels.items()}
    matches = [trial for trial in at_seed if labels.items() <= trial.labels.items()]
    if len(matches) == 1:
        return str(matches[0].trial)
    known = (
        {name: dict.fromkeys(trial.labels[name] for trial in at_seed) for name in at_seed[0].labels} if at_seed else {}
    )
    levels = "; ".join(f"{name}: {join_words(known[name])}" for name in known)
    if not labels:
        example = ",".join(f"{name}={level}" for name, level in at_seed[0].labels.items()) if at_seed else ""
        raise UserError(f"no arm is given and the study has {len(matches)}; expected one, such as {example} ({levels})")
    raise UserError(f"{len(matches)} arms have the labels {dict(labels)}; expected one ({levels})")


def kept_weights_folder(store: Store, labels: Mapping[str, str], seed: int | None) -> Path:
    """Return the folder of the kept weights of one trial; see `trial_name`.

    Raises:
      UserError: there is no such trial, or its weights were not kept.
    """
    trial = trial_name(store.declaration, labels, seed)
    folder = weights_folder(store.root, trial)
    if not step_numbers(folder, published=True):
        raise UserError(
            f"{store.root} has no weights of {trial}; expected a study that was run with --keep, or keep= in Python"
        )
    return folder


def is_study(folder: Path) -> bool:
    """True if a folder is the output folder of a study."""
    return (folder / "study.json").is_file()


class WeightsSource(NamedTuple):
    """Folder of weights, and their step; None for a checkpoint of Hugging Face."""

    folder: Path
    step: int | None


class TrainedModel(NamedTuple):
    """Config and weights of a model, and its run; None for a checkpoint of Hugging Face."""

    config: ModelConfig
    params: Transformer
    run: Run | None


def fetch(path: str | Path, name: str = "path") -> str | Path:
    """Return a path or a name of the hub as it is; of a URL of object storage, the local copy of what is there.

    Raises:
      UserError: there is nothing at the URL.
    """
    is_remote = url_of(path) is not None and not str(path).startswith(HUB)
    return remote.find_folder(path, name) if is_remote else path


def find_weights(
    path: str | Path,
    labels: Mapping[str, str] | None = None,
    trial_seed: int | None = None,
    step: int | None = None,
    field: str = "",
) -> WeightsSource:
    """Return the place of the weights that a path names.

    Args:
      path: folder of a training job, of a study whose weights were kept, of one of its trials, or of a checkpoint of
        Hugging Face; one of these in object storage, such as s3://bucket/runs/study; or a name of its hub,
        "OWNER/NAME" or "hf://OWNER/NAME@REVISION".
      labels: level of each axis of a study; those of axes that leave one arm may be omitted.
      trial_seed: seed of a study's trial; None is its first.
      step: a step of the folder; None is the best by validation loss of a job, else the newest.
      field: prefix of the arguments' names in messages, such as "init.".

    Raises:
      UserError: there are no such weights.
    """
    folder = find_checkpoint(str(fetch(path, f"{field}path")), f"{field}path")
    is_trial = is_study(folder)
    if not is_trial and (labels or trial_seed is not None):
        raise UserError(f"{field}path is '{path}', which is not a study, and {field}arm or {field}trial_seed is given")
    if is_checkpoint(folder):
        if step is not None:
            raise UserError(f"{field}path is '{path}', a checkpoint of Hugging Face, and {field}step is {step}")
        return WeightsSource(folder, None)
    if is_trial:
        folder = kept_weights_folder(Store(folder), labels or {}, trial_seed)
    checkpoints = Checkpoints(folder)
    steps = checkpoints.steps()
    if not steps:
        raise UserError(
            f"{field}path is '{path}', which holds no weights; expected the folder of a training job, of a study, or "
            "of a checkpoint of Hugging Face"
        )
    if step is not None and step not in steps:
        raise UserError(f"{field}step is {step}; expected one of the steps in {folder}: {', '.join(map(str, steps))}")
    best = None if is_trial else checkpoints.best()
    return WeightsSource(folder, step if step is not None else steps[-1] if best is None else best)


def read_model(source: WeightsSource, trust_code: bool = False) -> TrainedModel:
    """Return the config, the weights that evaluations use, and the run.

    Args:
      source: the place.
      trust_code: True to execute the folder's copy of the code that defines its classes, if they are not imported.

    Raises:
      UserError: the weights are damaged, or the copy of the code is needed, and was changed or is not trusted.
    """
    if source.step is None:
        return TrainedModel(*huggingface.load(source.folder), None)
    run = load_run(source.folder, trust_code)
    return TrainedModel(run.model, read_weights(source.folder, run, source.step), run)
