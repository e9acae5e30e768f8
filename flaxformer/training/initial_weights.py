"""Initial weights from another run: which weights of a source have a place in a model, and which are drawn."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.core import params
from flaxformer.core.params import path_name
from flaxformer.core.patterns import matches, unmatched_patterns, without_numbers
from flaxformer.core.pytree import Node
from flaxformer.core.struct import Config, part, static
from flaxformer.model.weights import Transformer
from flaxformer.system.errors import UserError


class Rename(Config):
    """Another path for weights of a source: each `*` of `new` stands for what the `*` at its place in `old` matches.

    >>> Rename(old="blocks/*", new="encoder/blocks/*")
    """

    old: str = static()
    new: str = static()

    def problems(self) -> Iterator[str]:
        if self.new.count("*") != self.old.count("*"):
            yield f"Rename.new is '{self.new}'; expected as many * as in old, '{self.old}'"

    def path(self, path: str) -> str | None:
        """Return the new path; None for a path that `old` does not match."""
        match = re.fullmatch("(.*)".join(map(re.escape, self.old.split("*"))), path)
        if match is None:
            return None
        parts = self.new.split("*")
        return "".join(text for pair in zip(parts, (*match.groups(), ""), strict=True) for text in pair)


class From(Config):
    """Initial weights from another run: weights with the path and shape of one there are loaded, the others are drawn.

    A weight that is drawn has the value that it has without `From`. The weights are those that evaluations of the
    source use: a running mean if there is one, and with adapters merged.

    path: folder of a training job, of a study whose weights were kept, of one of its trials, or of a checkpoint of
    Hugging Face; "hf://OWNER/NAME" of its hub; or a file .npz or .safetensors of arrays that are named by path.

    arm: levels of the arm of a study, such as "norm=pre,width=64"; those of axes that leave one arm may be omitted.

    trial_seed: seed of the trial of a study; None is the seed of the run itself, so that runs of a study stay paired.

    step: step of the weights; None is the best by validation loss of a job, else the newest, and the newest of a trial.

    rename: other paths for weights of the source; of several that match, the first.

    skip: patterns of weights that are drawn although the source has them (`core.patterns`).

    trust_code: True to execute the source's copy of the code that defines its classes, if they are not imported. It is
    not part of the run's identity, and is read from no file.
    """

    never_stored: ClassVar[tuple[str, ...]] = ("trust_code",)
    path: str = static()
    arm: str = static("")
    trial_seed: int | None = static(None, at_least=0)
    step: int | None = static(None, at_least=0)
    rename: tuple[Rename, ...] = part(())
    skip: tuple[str, ...] = static(())
    trust_code: bool = static(False)


class InitialWeights(Node):
    """Loaded weights, an input of the program that draws the others: trees over unrolled layers.

    values: the loaded weights, and zeros elsewhere.
    is_loaded: True at the loaded weights.
    """

    values: Transformer
    is_loaded: Transformer


def overlay(init: From | None, initial: InitialWeights | None, drawn: Transformer) -> Transformer:
    """Return the drawn weights with the loaded ones in their places.

    Raises:
      UserError: the run has weights to start from, and they are not given.
    """
    if initial is None:
        if init is not None:
            raise UserError(
                f"run.init is From(path='{init.path}'), and its weights are not given; expected "
                "start(run.without_init, initial=flaxformer.study.initial_weights.read(run))"
            )
        return drawn

    def choose(is_loaded: Bool[Array, ""], value: Array, drawn_value: Array) -> Array:
        return jnp.where(is_loaded, value, drawn_value)

    return jax.tree.map(choose, initial.is_loaded, initial.values, drawn)


def place(init: From, arrays: Mapping[str, np.ndarray], config: ModelConfig) -> InitialWeights:
    """Return the weights of a source in their places in a model.

    Args:
      init: paths to rename and to skip.
      arrays: the weights of the source by path, of each layer alone.
      config: the model.

    Raises:
      UserError: shapes differ, no weight has a place, two have the same one, or a pattern matches nothing.
    """
    specs = model.specs(config)
    shapes = {path: spec.shape for path, spec in params.table(specs)}
    named = _rename_paths(init, arrays)
    loaded = {path: array for path, array in named.items() if path in shapes and not matches(path, init.skip)}
    problems = list(unmatched_patterns("init.skip", init.skip, [*shapes, *named]))
    if wrong := [path for path, array in loaded.items() if array.shape != shapes[path]]:
        lines = "\n".join(f"  {path}: {list(loaded[path].shape)} there, {list(shapes[path])} here" for path in wrong)
        problems.append(
            f"init.path is '{init.path}', where {len(wrong)} weights have other shapes:\n{lines}\n"
            "Give their paths as init.skip to draw them, or rename them."
        )
    if not loaded:
        problems.append(
            f"init.path is '{init.path}', which has no weight with a path of this model; it has: {_list_paths(named)}; "
            f"the model has: {_list_paths(shapes)}"
        )
    if problems:
        raise UserError("\n".join(problems))

    def value(path: jax.tree_util.KeyPath, spec: params.Spec) -> np.ndarray:
        return np.asarray(loaded.get(path_name(path), np.zeros(spec.shape)), np.float32)

    def is_loaded(path: jax.tree_util.KeyPath, _: params.Spec) -> np.ndarray:
        return np.asarray(path_name(path) in loaded)

    return InitialWeights(*(jax.tree_util.tree_map_with_path(function, specs) for function in (value, is_loaded)))


def _rename_paths(init: From, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays by their new paths."""
    renamed: dict[str, np.ndarray] = {}
    used: set[int] = set()
    for path, array in arrays.items():
        new = path
        for number, rename in enumerate(init.rename):
            if (other := rename.path(path)) is not None:
                new = other
                used.add(number)
                break
        if new in renamed:
            raise UserError(f"init.rename gives two weights of '{init.path}' the path {new}; expected one")
        renamed[new] = array
    for number, rename in enumerate(init.rename):
        if number not in used:
            there = _list_paths(arrays)
            raise UserError(
                f"init.rename.{number}.old is '{rename.old}', which is not a weight of '{init.path}'; it has: {there}"
            )
    return renamed


def _list_paths(paths: Mapping[str, object]) -> str:
    return ", ".join(without_numbers(paths)) or "none"
