"""Trials of a folder of results by the labels of their arm and their seed, and the folders of their kept weights."""

from collections.abc import Mapping
from pathlib import Path

from flaxformer.checkpoint.steps import step_numbers
from flaxformer.store.declaration import Declaration
from flaxformer.store.places import weights_folder
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError
from flaxformer.system.wording import join_words


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
