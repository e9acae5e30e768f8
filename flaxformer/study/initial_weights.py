"""Weights that a run starts from: found in a folder or a file, identified by digests, and read.

The identity of such a trial has a digest of the source, so that a source that has changed makes other trials, and is
refused in a folder with results of the former one.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.host_arrays import copy_to_host
from flaxformer.checkpoint.steps import leaf_digests
from flaxformer.core.canonical import canonical
from flaxformer.interop.huggingface.files import read_safetensors, weight_files
from flaxformer.study.copied_code import load_run
from flaxformer.study.weights_source import WeightsSource, fetch, find_weights, is_study, parse_labels, read_model
from flaxformer.system import files
from flaxformer.system.errors import UserError
from flaxformer.system.remembered import remembered
from flaxformer.training.initial_weights import From, InitialWeights, place
from flaxformer.training.run import Run

SUFFIXES = (".npz", ".safetensors")


def digest(run: Run) -> str | None:
    """Return the digest of the weights that a run starts from, by the digests on disk; None for a run that draws all.

    Raises:
      UserError: there are no such weights.
    """
    init = run.init
    if init is None:
        return None
    path = _path(init)
    if path.suffix in SUFFIXES:
        return files.digest_of(_bytes(init, path))
    folder, step = _source(init, run.seed)
    if step is None:
        return files.digest_of(
            json.dumps([files.digest_of(file.read_bytes()) for file in weight_files(folder)]).encode()
        )
    digests = leaf_digests(folder, step)
    # Evaluation weights of a job depend on its run too: on its adapter, and on an optimizer that averages.
    is_weights_alone = Checkpoints(folder).holds_weights_alone(step)
    identity = [digests, None if is_weights_alone else canonical(load_run(folder, init.trust_code))]
    return files.digest_of(json.dumps(identity, sort_keys=True).encode())


def read(run: Run, expected: str | None = None) -> InitialWeights | None:
    """Return the weights that a run starts from, verified by their digests; None for a run that draws all.

    Args:
      run: the run.
      expected: the digest that the weights had when the run was declared; None compares nothing.

    Raises:
      UserError: there are no such weights, they are damaged or were changed, or their shapes are others.
    """
    init = run.init
    if init is None:
        return None
    if expected is not None and (current := digest(run)) != expected:
        raise UserError(f"init.path is '{init.path}', which has changed since it was declared: {expected} -> {current}")
    return place(init, _arrays(init, run.seed), run.model)


def _arrays(init: From, seed: int) -> Mapping[str, np.ndarray]:
    """The weights of a source, by path and layer."""
    path = _path(init)
    if path.suffix in SUFFIXES:
        return _read_file(init, path)
    params = read_model(_source(init, seed), init.trust_code).params  # on a device of this process
    return {name: np.asarray(array) for name, array in copy_to_host(params).items()}


def _source(init: From, seed: int) -> WeightsSource:
    """The folder of the weights, and the step; of a study, by default those of the run's own seed."""
    is_trial = is_study(_path(init))
    trial_seed = seed if is_trial and init.trial_seed is None else init.trial_seed
    return find_weights(local_source(init.path), parse_labels(init.arm), trial_seed, init.step, "init.")


def _path(init: From) -> Path:
    """The local path of the weights."""
    return Path(local_source(init.path)).expanduser()


@remembered
def local_source(path: str) -> str | Path:
    """The local path of the weights; a process keeps the copy of object storage that it has fetched."""
    return fetch(path, "init.path")


def _bytes(init: From, path: Path) -> bytes:
    if init.arm or init.trial_seed is not None or init.step is not None:
        raise UserError(f"init.path is '{init.path}', a file; expected no arm, trial_seed or step")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"init.path is '{init.path}', which cannot be read: {error.strerror}") from None


def _read_file(init: From, path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file .npz or .safetensors, by name."""
    _bytes(init, path)
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: np.asarray(arrays[name]) for name in arrays.files}
        return read_safetensors(path)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"init.path is '{init.path}', which cannot be read ({type(error).__name__}: {error})") from None
