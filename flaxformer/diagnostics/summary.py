"""Diagnostics as flat named numbers, for tables and lines of JSON."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.diagnostics.diagnose import Diagnostics
from flaxformer.diagnostics.places import ENCODER, in_any_layer, in_layers, one_by_one

STATISTICS = {
    "entropy": "attention_entropy",
    "largest_logit": "largest_logit",
    "logit_variance": "logit_variance",
    "head_diversity": "head_diversity",
}
"""The name that each of the `AttentionStatistics` has in a table."""


def summary(diagnostics: Diagnostics, coarse: bool = False) -> dict[str, Float[Array, ""]]:
    """Every number under the name quantity/place, each layer and head by itself; coarse, few numbers over all layers.

    Such as "gradient_norm/blocks/3", "gradient_norm/blocks/3/attention/query", "rms/blocks/3/attention/update",
    "attention_entropy/blocks/3/attention/head/1", "head_diversity/blocks/3/attention", "loss".

    Coarse: what is in the layers has its least, mean and largest value over layers and heads,
    "attention_entropy/blocks/attention/min" (…/mean, …/max); norms are of whole blocks and of what stands outside them.
    A component's own statistics always are: "statistics/blocks/feed_forward/load/max". Its losses are scalars,
    "loss/blocks/feed_forward/balance".
    """
    rows = {"loss": diagnostics.loss} | {f"loss/{name}": x for name, x in diagnostics.losses.items()}
    for quantity, found in _quantities(diagnostics).items():
        if coarse:
            found = {place: x for place, x in found.items() if not quantity.endswith("_norm") or _is_outermost(place)}
        numbers = _over_layers(found) if coarse else _by_head(one_by_one(found))
        rows |= {f"{quantity}/{place}": x for place, x in numbers.items()}
    for name, x in diagnostics.statistics.items():
        rows |= _extremes(f"statistics/{name}", x) if x.size > 1 else {f"statistics/{name}": x.reshape(())}
    return rows


def _extremes(name: str, x: Array) -> dict[str, Array]:
    return {f"{name}/min": x.min(), f"{name}/mean": x.mean(), f"{name}/max": x.max()}


def _quantities(diagnostics: Diagnostics) -> dict[str, dict[str, Array]]:
    """{quantity: {place: array}}."""
    found = {name: getattr(diagnostics, name) for name in ("gradient_norm", "parameter_norm", "update_norm", "rms")}
    for field, name in STATISTICS.items():
        found[name] = {place: getattr(statistics, field) for place, statistics in diagnostics.attention.items()}
    return found


def _is_outermost(place: str) -> bool:
    return "/" not in in_any_layer(place).removeprefix(f"{ENCODER}/")


def _over_layers(found: dict[str, Array]) -> dict[str, Array]:
    by_place: dict[str, list[Array]] = {}
    for place, x in found.items():
        by_place.setdefault(in_any_layer(place), []).append(x)
    rows: dict[str, Array] = {}
    for place, parts in by_place.items():
        if in_layers(place):
            x = parts[0] if len(parts) == 1 else jnp.concatenate([part.ravel() for part in parts])
            rows |= _extremes(place, x)
        else:
            rows[place] = parts[0]
    return rows


def _by_head(found: dict[str, Array]) -> dict[str, Array]:
    """Return rows of which a remaining axis is named by head."""
    rows: dict[str, Array] = {}
    for place, x in found.items():
        rows |= {place: x} if x.ndim == 0 else {f"{place}/head/{head}": x[head] for head in range(len(x))}
    return rows
