"""Conversion of rotary positions: rope_parameters of transformers 5, and rope_theta and rope_scaling before it."""

import math
from collections.abc import Mapping

from flaxformer.components import Llama3Scaling, Rotary, RotaryScaling, YaRN
from flaxformer.components.rotary_scaling import LinearScaling
from flaxformer.interop.huggingface.attributes import Attributes
from flaxformer.system.errors import UserError

LENGTH = {"original_max_position_embeddings": "original_length"}
SCALINGS: Mapping[str, tuple[type[RotaryScaling], Mapping[str, str]]] = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "llama3": (
        Llama3Scaling,
        {"factor": "factor", "low_freq_factor": "low", "high_freq_factor": "high"} | LENGTH,
    ),
    "yarn": (
        YaRN,
        {"factor": "factor", "beta_fast": "fast", "beta_slow": "slow", "truncate": "truncate"}
        | {"attention_factor": "attention_factor"}
        | LENGTH,
    ),
}
"""Class of each rope_type, and its fields by their names in config.json."""
REQUIRED = ("factor", "low", "high", "original_length")
GENERAL = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
MAGNITUDES = ("mscale", "mscale_all_dim")
"""Numbers of YaRN from which the attention factor is computed if it is not given."""


def read_rotary(parameters: Attributes, attributes: Attributes, d_head: int) -> Rotary:
    """Return the positions of one group of parameters.

    Args:
      parameters: rope_type, rope_theta, factor, and so on.
      attributes: those of the model, for its max_position_embeddings.

    Raises:
      UserError: an unsupported type, or an unknown parameter.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind != "default" and kind not in SCALINGS:
        raise UserError(
            f"config.json has rotary positions of the type {kind!r}, which is not supported; "
            f"expected default, {', '.join(SCALINGS)}"
        )
    names = SCALINGS[kind][1] if kind in SCALINGS else {}
    known = (*GENERAL, *names, *(MAGNITUDES if kind == "yarn" else ()))
    for name, value in parameters.items():
        if name not in known and value is not None:
            raise UserError(
                f"config.json has '{name}' {value!r} in the parameters of rotary positions of the type {kind!r}; "
                f"expected only {', '.join(known)}"
            )
    share = parameters.get("partial_rotary_factor")
    width = d_head if share is None else int(d_head * share)
    return Rotary(
        base=parameters["rope_theta"],
        rotated_width=None if width == d_head else width,
        scaling=_read_scaling(kind, parameters, attributes) if kind in SCALINGS else None,
    )


def _read_scaling(kind: str, parameters: Attributes, attributes: Attributes) -> RotaryScaling:
    scaling, names = SCALINGS[kind]
    values, longest = {**parameters}, attributes.get("max_position_embeddings")
    if "original_max_position_embeddings" in names and values.get("original_max_position_embeddings") is None:
        values["original_max_position_embeddings"] = longest
    if kind == "yarn" and values.get("factor") is None and longest is not None:
        values["factor"] = longest / values["original_max_position_embeddings"]
    for theirs, ours in names.items():
        if values.get(theirs) is None and ours in REQUIRED:
            raise UserError(
                f"config.json has no '{theirs}' of rotary positions of the type {kind!r}; expected a number"
            )
    if kind == "yarn" and values.get("attention_factor") is None and all(values.get(name) for name in MAGNITUDES):
        numerator, denominator = (0.1 * values[name] * math.log(values["factor"]) + 1 for name in MAGNITUDES)
        values["attention_factor"] = numerator / denominator
    fields = {ours: values.get(theirs) for theirs, ours in names.items()}
    return scaling(**{name: value for name, value in fields.items() if value is not None})


def write_rotary(positions: Rotary, d_head: int) -> dict[str, object]:
    """Return the parameters of positions, the inverse of `read_rotary`."""
    parameters: dict[str, object] = {"rope_type": "default", "rope_theta": positions.base}
    if positions.rotated_width is not None:
        share = positions.rotated_width / d_head
        exact = int(d_head * share) == positions.rotated_width
        parameters["partial_rotary_factor"] = share if exact else math.nextafter(share, 1)
    for kind, (scaling, names) in SCALINGS.items():
        if type(positions.scaling) is scaling:
            values = {theirs: getattr(positions.scaling, ours) for theirs, ours in names.items()}
            parameters |= {"rope_type": kind} | {name: value for name, value in values.items() if value is not None}
    return parameters
