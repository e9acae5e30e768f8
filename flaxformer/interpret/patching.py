"""Effect of activation patching: how much of a difference between two inputs an activation carries."""

from collections.abc import Callable, Sequence
from typing import Literal, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.interpret.interventions import HEAD_AXES, TOKEN_AXES, patch
from flaxformer.model.call import ForwardInputs
from flaxformer.model.weights import Transformer
from flaxformer.system.errors import UserError

Per = Literal["all", "heads", "positions"]


def patching_effect(
    params: Transformer,
    config: ModelConfig,
    clean: Array,
    corrupted: Array,
    metric: Callable[[Array], Array],
    at: str | Sequence[str],
    *,
    per: Per = "all",
    **arguments: Unpack[ForwardInputs],
) -> dict[str, Float[Array, "..."]]:
    """Return the effect of activations of the clean input in a forward pass of the corrupted one, by path.

    (m(patched) − m(corrupted)) / (m(clean) − m(corrupted)): 0 for no effect, 1 if the activation restores the metric.
    Where m(clean) = m(corrupted), there is no difference to restore: the effect is undefined, and NaN.

    Args:
      clean, corrupted: inputs of the same shape that differ in what the metric depends on.
      metric: scalar function of the output, such as the mean difference of two logits at the last position.
      at: paths or patterns of the points that are patched, one at a time.
      per: "all" patches a whole activation; "heads" or "positions" patch one at a time and give an array.
      arguments: further arguments of `apply`, for both inputs.

    Raises:
      UserError: the shapes of the inputs differ, or a point has no heads.

    Source: Meng et al. 2022 (causal tracing); Wang et al. 2022 (path patching).
    """
    if clean.shape != corrupted.shape:
        raise UserError(
            f"clean has shape {list(clean.shape)} and corrupted {list(corrupted.shape)}; expected one shape"
        )
    if per not in ("all", "heads", "positions"):
        raise UserError(f"per is {per!r}; expected all, heads or positions")
    sources = model.activations_at(params, config, clean, at, **arguments)
    whole = metric(model.apply(params, config, clean, **arguments))
    base = metric(model.apply(params, config, corrupted, **arguments))

    def effect(path: str, index: Int[Array, ""] | None) -> Float[Array, ""]:
        chosen = {} if index is None else {per: index}
        edit = patch({path: sources[path]}, **chosen)
        restored = metric(model.apply(params, config, corrupted, edit=edit, **arguments)) - base
        return jnp.where(whole == base, jnp.nan, restored / (whole - base))

    effects = {}
    for path, x in sources.items():
        name = path.rpartition("/")[2]
        axis = {"heads": HEAD_AXES.get(name), "positions": TOKEN_AXES.get(name, -2), "all": 0}[per]
        if axis is None:
            raise UserError(
                f"per is \"heads\" for '{path}', which has none; expected a point of {', '.join(HEAD_AXES)}"
            )
        numbers = jnp.arange(x.shape[axis])
        effects[path] = (
            effect(path, None) if per == "all" else jax.lax.map(lambda index, path=path: effect(path, index), numbers)
        )
    return effects
