"""Diagnostics as a flat dictionary of named scalars, for tables and JSON."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.diagnostics.diagnose import Diagnostics
from flaxformer.diagnostics.places import ENCODER, is_in_every_layer, split_layers, without_layer

STATISTICS = {
    "entropy": "attention_entropy",
    "largest_logit": "largest_logit",
    "logit_variance": "logit_variance",
    "head_diversity": "head_diversity",
}
"""Name of each field of `AttentionStatistics` in a table."""


def summary(diagnostics: Diagnostics, coarse: bool = False) -> dict[str, Float[Array, ""]]:
    """Return every diagnostic as a scalar by the name quantity/place.

    Args:
      diagnostics: those of one step.
      coarse: False has one number per layer and head, such as "gradient_norm/blocks/3/attention/query",
        "rms/blocks/3/attention/update", "attention_entropy/blocks/3/attention/head/1". True has the minimum, mean and
        maximum over layers and heads, such as "attention_entropy/blocks/attention/min", and only norms of whole blocks
        and of modules outside the blocks.

    Returns:
      The scalars. Statistics of components always have minimum, mean and maximum, such as
      "statistics/blocks/feed_forward/load/max"; losses of components are "loss/blocks/feed_forward/balance".
    """
    scalars = {"loss": diagnostics.loss} | {f"loss/{name}": x for name, x in diagnostics.losses.items()}
    for quantity, measurements in _quantities(diagnostics).items():
        if coarse:
            is_norm = quantity.endswith("_norm")
            chosen = {place: x for place, x in measurements.items() if not is_norm or _is_outermost(place)}
            numbers = _summarise_layers(chosen)
        else:
            numbers = _split_heads(split_layers(measurements))
        scalars |= {f"{quantity}/{place}": x for place, x in numbers.items()}
    for name, x in diagnostics.statistics.items():
        scalars |= _extremes(f"statistics/{name}", x) if x.size > 1 else {f"statistics/{name}": x.reshape(())}
    return scalars


def _extremes(name: str, x: Array) -> dict[str, Array]:
    return {f"{name}/min": x.min(), f"{name}/mean": x.mean(), f"{name}/max": x.max()}


def _quantities(diagnostics: Diagnostics) -> dict[str, dict[str, Array]]:
    """Return {quantity: {place: array}}."""
    quantities = {
        name: getattr(diagnostics, name) for name in ("gradient_norm", "parameter_norm", "update_norm", "rms")
    }
    for field, name in STATISTICS.items():
        quantities[name] = {place: getattr(statistics, field) for place, statistics in diagnostics.attention.items()}
    return quantities


def _is_outermost(place: str) -> bool:
    return "/" not in without_layer(place).removeprefix(f"{ENCODER}/")


def _summarise_layers(measurements: dict[str, Array]) -> dict[str, Array]:
    """Return minimum, mean and maximum over the layers and heads of each place."""
    by_place: dict[str, list[Array]] = {}
    for place, x in measurements.items():
        by_place.setdefault(without_layer(place), []).append(x)
    scalars: dict[str, Array] = {}
    for place, arrays in by_place.items():
        if is_in_every_layer(place):
            x = arrays[0] if len(arrays) == 1 else jnp.concatenate([array.ravel() for array in arrays])
            scalars |= _extremes(place, x)
        else:
            scalars[place] = arrays[0]
    return scalars


def _split_heads(measurements: dict[str, Array]) -> dict[str, Array]:
    """Return scalars by place; an axis that remains is one of heads."""
    scalars: dict[str, Array] = {}
    for place, x in measurements.items():
        scalars |= {place: x} if x.ndim == 0 else {f"{place}/head/{head}": x[head] for head in range(len(x))}
    return scalars
