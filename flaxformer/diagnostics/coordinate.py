"""The coordinate check: how the size of activations grows with the width of the model, step by step."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar

import jax
import numpy as np
from jaxtyping import Array

from flaxformer.config import ModelConfig
from flaxformer.diagnostics.activations import magnitude, measured, of_output
from flaxformer.diagnostics.places import one_by_one
from flaxformer.params import fold_in_name
from flaxformer.struct import Config, UserError, replace_at
from flaxformer.tasks.base import Source, concat_parts
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState, apply_gradients, backward, start

GROWING = {"heads": ("d_head", "d_value"), "d_head": ("heads", "key_value_heads")}
"""Names of sizes that grow with the model's width, beside d_ff and d_memory, where the other is fixed."""
STREAMS = ("logits", "update", "stream")
Fixed = Literal["heads", "d_head"]
ModelT = TypeVar("ModelT", bound=ModelConfig)


@dataclasses.dataclass(frozen=True, eq=False)
class CoordinateCheck:
    """Sizes of activations by width and step.

    Args:
      widths: the values of d_model, W of them.
      sizes: by place, mean |activation| [steps + 1, W]: before training, and after 1, 2 … steps. Places are those of
        `Diagnostics.rms` in one layer each, and "blocks/0/attention/logits", of the pairs that may attend.
    """

    widths: tuple[int, ...]
    sizes: dict[str, np.ndarray]

    @property
    def slopes(self) -> dict[str, np.ndarray]:
        """By place and step [steps + 1], the least-squares slope of ln size against ln width.

        0 where the size does not depend on the width, ½ where it grows as √width; NaN where a size is 0 or not finite.
        """
        return {place: slope(self.widths, sizes) for place, sizes in self.sizes.items()}


def coordinate_check(run: Run, widths: Sequence[int], steps: int = 3, fixed: Fixed = "heads") -> CoordinateCheck:
    """Train the run at several widths for a few steps, and measure mean |activation| of each stage before each step.

    All else is as in the run: learning rate, initialiser, seed and batches. A parametrisation in which wide models
    train as narrow ones do has slopes near 0 at every step; where a slope grows, so does the change that one step
    makes, and the best learning rate falls with the width (Yang et al. 2021, "Tensor Programs V", and its package).

    Args:
      widths: values of d_model, two at least; other sizes keep their ratio to it, as `at_width` says.
      steps: training steps.
      fixed: "heads" keeps the number of heads and grows them; "d_head" keeps their width and adds heads.

    Raises:
      UserError: a width that another size of the model cannot follow in proportion; fewer than two widths.
    """
    if len(set(widths)) < 2:
        raise UserError(f"widths is {list(widths)}; expected two different ones at least, for a slope")
    source = run.task.load()
    runs = [run.replace(model=at_width(run.model, width, fixed)) for width in widths]
    found = [jax.device_get(_sizes(own, source, steps)) for own in runs]
    return CoordinateCheck(tuple(widths), {place: np.stack([one[place] for one in found], 1) for place in found[0]})


def at_width(model: ModelT, width: int, fixed: Fixed = "heads") -> ModelT:
    """The model with d_model = width and all that depends on it in proportion.

    These are its integers, and those of its components and of its encoder, that are named d_model, d_memory, d_ff, or
    as `GROWING` says: `attention.heads`, `feed_forward.d_ff`, `encoder.d_model` and so on. What is None follows anyway.

    Raises:
      UserError: a size that is not whole at this width.
    """
    if fixed not in GROWING:
        raise UserError(f"fixed is {fixed!r}; expected one of {', '.join(GROWING)}")
    names, before, changes = {"d_model", "d_memory", "d_ff", *GROWING[fixed]}, model.d_model, {}
    for path, value in _integers(model):
        if path.rpartition(".")[2] in names:
            changes[path], rest = divmod(value * width, before)
            if rest:
                raise UserError(f"{path} is {value} at d_model {before}; expected a whole number at {width}")
    return replace_at(model, changes)


def _integers(config: Any, within: str = "") -> Iterator[tuple[str, int]]:
    """Every integer of a config and of the configs in it, by its dotted path."""
    if isinstance(config, tuple):
        inside = {str(number): item for number, item in enumerate(config)}
    else:
        inside = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name, value in inside.items():
        if isinstance(value, Config | tuple):
            yield from _integers(value, f"{within}{name}.")
        elif type(value) is int:
            yield within + name, value


def slope(widths: Sequence[int], sizes: np.ndarray) -> np.ndarray:
    """The least-squares slope of ln sizes [..., W] against ln widths, in float64."""
    x = np.log(np.asarray(widths, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(np.asarray(sizes, np.float64))
        return (y - y.mean(-1, keepdims=True)) @ (x - x.mean()) / np.square(x - x.mean()).sum()


@functools.partial(jax.jit, static_argnames="steps")
def _sizes(run: Run, source: Source, steps: int) -> dict[str, Array]:
    """mean |activation| by place in one layer each, [steps + 1]: of the forward pass of each training step."""
    key = fold_in_name(jax.random.key(run.seed), "data")

    def body(state: TrainState, _: None) -> tuple[TrainState, dict[str, Array]]:
        batch = concat_parts(source.batch(key, state.step))
        loss, gradient, outcome = backward(state, run, batch, return_intermediates=True)
        sizes = measured(outcome.intermediates, batch, magnitude, STREAMS)
        sizes["output"] = of_output(outcome.output, batch, magnitude)
        return apply_gradients(state, run, loss, gradient, outcome.aux)[0], one_by_one(sizes)

    return jax.lax.scan(body, start(run), length=steps + 1)[1]
