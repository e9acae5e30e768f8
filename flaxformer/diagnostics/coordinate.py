"""Coordinate check: growth of the activations' size with the width of the model, at each of the first steps."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import jax
import numpy as np
from jaxtyping import Array

from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.core.struct import Config
from flaxformer.diagnostics.activations import magnitude, measure_activations, measure_output
from flaxformer.diagnostics.places import split_layers
from flaxformer.system.errors import UserError
from flaxformer.tasks.batch import Source, concat_parts
from flaxformer.tasks.host import Chunk, gather_batches
from flaxformer.training.run import Run
from flaxformer.training.step import TrainState, apply_gradients, backward, start

GROWING = {"heads": ("d_head", "d_value"), "d_head": ("heads", "key_value_heads")}
"""Sizes that grow in proportion to the model's width, beside d_ff and d_memory, by the size that is fixed."""
STAGES = ("logits", "update", "stream")
"""Activations that are measured per branch."""
Fixed = Literal["heads", "d_head"]
ModelT = TypeVar("ModelT", bound=ModelConfig)


@dataclasses.dataclass(frozen=True, eq=False)
class CoordinateCheck:
    """Sizes of activations by width and step.

    Args:
      widths: the values of d_model, W of them.
      sizes: by place, mean |activation| [steps + 1, W]: before training, and after 1, 2 … steps. Places are those of
        `Diagnostics.rms`, of each layer separately, and "blocks/0/attention/logits", over pairs that the mask allows.
    """

    widths: tuple[int, ...]
    sizes: dict[str, np.ndarray]

    @property
    def slopes(self) -> dict[str, np.ndarray]:
        """Least-squares slopes [steps + 1] of ln size against ln width, by place.

        0 if the size does not depend on the width, ½ if it grows as √width; NaN if a size is 0 or not finite.
        """
        return {place: slope(self.widths, sizes) for place, sizes in self.sizes.items()}


def coordinate_check(run: Run, widths: Sequence[int], steps: int = 3, fixed: Fixed = "heads") -> CoordinateCheck:
    """Train a run at several widths for a few steps, and measure mean |activation| before each step.

    Learning rate, initialiser, seed and batches are those of the run. In a parametrisation that makes training
    independent of the width, slopes are near 0 at every step. A slope that grows from step to step means that updates
    grow with the width, so that the best learning rate falls (Yang et al. 2021, "Tensor Programs V", and its package).

    Args:
      run: the run at any width.
      widths: values of d_model, at least two; `at_width` changes other sizes in proportion.
      steps: training steps.
      fixed: "heads" keeps the number of heads and widens them; "d_head" keeps their width and adds heads.

    Raises:
      UserError: a size of the model is not whole at a width; fewer than two widths.
    """
    if len(set(widths)) < 2:
        raise UserError(f"widths is {list(widths)}; expected at least two different widths, to fit a slope")
    source = run.task.load()
    if source.on_host:
        source = Chunk(first=np.asarray(0), batches=gather_batches(source, run.data_key, 0, steps + 1))
    runs = [run.replace(model=at_width(run.model, width, fixed)) for width in widths]
    sizes = [jax.device_get(activation_sizes(width_run, source, steps)) for width_run in runs]
    return CoordinateCheck(
        tuple(widths), {place: np.stack([run_sizes[place] for run_sizes in sizes], 1) for place in sizes[0]}
    )


def at_width(model: ModelT, width: int, fixed: Fixed = "heads") -> ModelT:
    """Return the model with d_model = width, and other sizes in proportion.

    Changed are the integer fields of the model, its components and its encoder that are named d_model, d_memory, d_ff,
    or listed in `GROWING`: `attention.heads`, `feed_forward.d_ff`, `encoder.d_model` and so on. Sizes that are None
    follow from these.

    Raises:
      UserError: a size is not whole at this width.
    """
    if fixed not in GROWING:
        raise UserError(f"fixed is {fixed!r}; expected one of {', '.join(GROWING)}")
    names, before, changes = {"d_model", "d_memory", "d_ff", *GROWING[fixed]}, model.d_model, {}
    for path, value in _integers(model):
        if path.rpartition(".")[2] in names:
            changes[path], remainder = divmod(value * width, before)
            if remainder:
                raise UserError(f"{path} is {value} at d_model {before}; expected a whole number at {width}")
    return replace_at(model, changes)


def _integers(config: Config | tuple[object, ...], within: str = "") -> Iterator[tuple[str, int]]:
    """Yield every integer of a config and of the configs in it, with its dotted path."""
    if isinstance(config, tuple):
        values = {str(number): item for number, item in enumerate(config)}
    else:
        values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name, value in values.items():
        if isinstance(value, Config | tuple):
            yield from _integers(value, f"{within}{name}.")
        elif type(value) is int:
            yield within + name, value


def slope(widths: Sequence[int], sizes: np.ndarray) -> np.ndarray:
    """Return the least-squares slope of ln sizes [..., W] against ln widths [W], in float64."""
    x = np.log(np.asarray(widths, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(np.asarray(sizes, np.float64))
        return (y - y.mean(-1, keepdims=True)) @ (x - x.mean()) / np.square(x - x.mean()).sum()


@functools.partial(jax.jit, static_argnames="steps")
def activation_sizes(run: Run, source: Source, steps: int) -> dict[str, Array]:
    """Return mean |activation| [steps + 1] in the forward pass of each training step, by place in single layers."""
    key = run.data_key

    def body(state: TrainState, _: None) -> tuple[TrainState, dict[str, Array]]:
        batch = concat_parts(source.batch(key, state.step))
        loss, gradient, outcome = backward(state, run, batch, return_intermediates=True)
        assert outcome.intermediates is not None
        sizes = measure_activations(outcome.intermediates, batch, magnitude, STAGES)
        sizes["output"] = measure_output(outcome.output, batch, magnitude)
        return apply_gradients(state, run, loss, gradient, outcome.aux)[0], split_layers(sizes)

    return jax.lax.scan(body, start(run), length=steps + 1)[1]
