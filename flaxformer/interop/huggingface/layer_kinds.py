"""Layers that differ: attributes of config.json that give the windows and the positions of each layer."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from flaxformer.components import NoPositions, Positions, Rotary
from flaxformer.config import Block, ModelConfig
from flaxformer.config.block import SAME
from flaxformer.core.paths import get_at
from flaxformer.interop.huggingface.attributes import Attributes
from flaxformer.interop.huggingface.rotary import read_rotary, write_rotary
from flaxformer.system.errors import UserError

FULL, SLIDING = "full_attention", "sliding_attention"
LayerKind = tuple[int | None, Positions]
"""Window of a layer, and the positions of its attention."""


def every(number: int, last: str, name: str = "") -> Callable[[Attributes, int], list[str]]:
    """Return the function that gives every n-th layer the type `last`, and the others the other type.

    name: attribute that may have n in place of `number`.
    """
    first = FULL if last == SLIDING else SLIDING

    def types(attributes: Attributes, layers: int) -> list[str]:
        period = attributes.get(name) or number
        return [first if (layer + 1) % period else last for layer in range(layers)]

    return types


def rotated_layers(attributes: Attributes, layers: int, names: tuple[str, str]) -> list[bool]:
    """Return which layers have rotary positions, by the attributes of `LayerKinds.rotated`."""
    name, interval = names
    period = attributes.get(interval) or 4
    values = attributes.get(name) or [(layer + 1) % period for layer in range(layers)]
    if len(values) != layers:
        raise UserError(f"config.json has '{name}' {values!r}; expected 0 or 1 for each of {layers} layers")
    return [bool(value) for value in values]


@dataclasses.dataclass(frozen=True)
class LayerKinds:
    """Attributes of windows and rotary positions, layer by layer.

    types: function from the attributes and the number of layers to the type of each layer, where the file has no
      layer_types; None for a family without this attribute.
    window: attribute with the window of layers of the type "sliding_attention"; None for a family without windows.
    default_window: the value of this attribute where the file has none.
    is_diameter: True if the attribute counts the tokens within the window on both sides, without the token itself.
    switch: attribute without which there are no windows.
    rotated: attribute with 1 for layers with rotary positions, and 0 for those without any; and the attribute with n,
      where every n-th layer has none.
    bases: attribute before transformers 5 with the base of rotary positions, and its default, by the type of the layer.
    share: attribute before transformers 5 with the share of each head that is rotated, and its default.
    read_by_types: attributes that `types` alone reads.
    is_scaled: True if positions are scaled where the file does not say how.
    """

    types: Callable[[Attributes, int], Sequence[str]] | None = None
    window: str | None = None
    default_window: int | None = None
    is_diameter: bool = False
    switch: str | None = None
    rotated: tuple[str, str] | None = None
    bases: Mapping[str, tuple[str, float]] = dataclasses.field(default_factory=lambda: {FULL: ("rope_theta", 10_000.0)})
    share: tuple[str, float] | None = None
    read_by_types: tuple[str, ...] = ()
    is_scaled: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Attributes that are read."""
        names = [self.window, self.switch, *(self.rotated or ()), *self.read_by_types]
        layer_types = ["layer_types"] if self.types else []
        bases = [name for name, _ in self.bases.values()]
        share = self.share or ("partial_rotary_factor", 1.0)
        names += ["rope_parameters", "rope_scaling", share[0], *layer_types, *bases]
        return tuple(name for name in names if name)

    def read(self, attributes: Attributes, config: ModelConfig) -> ModelConfig:
        """Return the config with the windows and positions of its layers."""
        return with_kinds(config, self._kinds(attributes, config))

    def _kinds(self, attributes: Attributes, config: ModelConfig) -> list[LayerKind]:
        types = self._types(attributes, config.layers)
        window = self._window(attributes)
        if SLIDING in types and window is None:
            names = " and ".join(f"'{name}' {attributes.get(name)!r}" for name in (self.switch, self.window) if name)
            raise UserError(f"config.json has layers of the type {SLIDING!r} with {names}; expected a window")
        bases = {kind: self._positions(attributes, kind, config) for kind in self.bases}
        kinds = [(window if kind == SLIDING else None, bases[kind if kind in bases else FULL]) for kind in types]
        return [
            kind if has_positions else (kind[0], NoPositions())
            for kind, has_positions in zip(kinds, self._rotated(attributes, config.layers), strict=True)
        ]

    def _window(self, attributes: Attributes) -> int | None:
        if self.window is None or (self.switch is not None and not attributes.get(self.switch)):
            return None
        value: int | None = attributes.get(self.window, self.default_window)
        return value // 2 + 1 if self.is_diameter and value is not None else value

    def _types(self, attributes: Attributes, layers: int) -> Sequence[str]:
        if self.types is None:
            return [FULL if self._window(attributes) is None else SLIDING] * layers
        types = attributes.get("layer_types") or self.types(attributes, layers)
        if len(types) != layers or not {*types} <= {FULL, SLIDING}:
            raise UserError(
                f"config.json has 'layer_types' {types!r}; expected {FULL!r} or {SLIDING!r} for each of {layers} layers"
            )
        return types

    def _rotated(self, attributes: Attributes, layers: int) -> Sequence[bool]:
        return [True] * layers if self.rotated is None else rotated_layers(attributes, layers, self.rotated)

    def _positions(self, attributes: Attributes, kind: str, config: ModelConfig) -> Rotary:
        """Return the positions of layers of one type."""
        name, base = self.bases[kind]
        parameters = dict(attributes.get("rope_parameters") or {})
        if len(self.bases) > 1 or {FULL, SLIDING} & {*parameters}:
            if unknown := {*parameters} - {*self.bases}:
                raise UserError(f"config.json has 'rope_parameters' of {sorted(unknown)}; expected {[*self.bases]}")
            parameters = dict(parameters.get(kind) or {})
        scaling = (attributes.get("rope_scaling") or {}) if kind == FULL else {}
        share, _ = self.share or ("partial_rotary_factor", 1.0)
        outer = {"rope_theta": attributes.get(name), "partial_rotary_factor": attributes.get(share)}
        for other in (scaling, outer):
            for key, value in other.items():
                key = "rope_type" if key == "type" else key
                if value is not None and parameters.setdefault(key, value) != value:
                    raise UserError(
                        f"config.json has '{key}' {value!r}, and {parameters[key]!r} elsewhere; expected one"
                    )
        parameters.setdefault("rope_theta", base)
        if self.share is not None:
            parameters.setdefault("partial_rotary_factor", self.share[1])
        elif parameters.get("partial_rotary_factor") not in (None, 1.0):
            share = parameters["partial_rotary_factor"]
            raise UserError(
                f"config.json has 'partial_rotary_factor' {share!r}; expected 1.0, the only supported value"
            )
        return read_rotary(parameters, attributes, get_at(config, "attention.d_head"))

    def write(self, config: ModelConfig) -> dict[str, object]:
        """Return the attributes of a config.

        Raises:
          UserError: windows or positions that no model of the family has.
        """
        kinds, d_head = kinds_of(config), get_at(config, "attention.d_head")
        windows = {window for window, _ in kinds if window is not None}
        if len(windows) > 1:
            raise UserError(f"the layers have windows of {sorted(windows)}; expected one window, or none")
        types = [FULL if window is None else SLIDING for window, _ in kinds]
        attributes: dict[str, object] = {}
        if self.window is not None:
            width = 2 * (max(windows) - 1) if self.is_diameter and windows else max(windows, default=None)
            attributes[self.window] = self.default_window if width is None and self.types is not None else width
        if self.types is not None:
            attributes["layer_types"] = types
        if self.switch is not None:
            attributes[self.switch] = bool(windows)
        if self.rotated is not None:
            attributes[self.rotated[0]] = [int(not isinstance(positions, NoPositions)) for _, positions in kinds]
        return attributes | self._write_positions([*zip(types, (scheme for _, scheme in kinds), strict=True)], d_head)

    def _write_positions(self, kinds: Sequence[tuple[str, Positions]], d_head: int) -> dict[str, object]:
        by_type: dict[str, dict[str, object]] = {}
        for kind, positions in kinds:
            if isinstance(positions, NoPositions) and self.rotated is not None:
                continue
            if not isinstance(positions, Rotary):
                raise UserError(f"positions are {type(positions).__name__}; expected Rotary()")
            parameters = write_rotary(positions, d_head)
            if by_type.setdefault(kind if len(self.bases) > 1 else FULL, parameters) != parameters:
                raise UserError(f"layers of the type {kind!r} have different positions; expected one base and scaling")
        defaults = {kind: {"rope_type": "default", "rope_theta": base} for kind, (_, base) in self.bases.items()}
        by_type = defaults | by_type
        if len(self.bases) > 1:
            return {"rope_parameters": by_type}
        parameters = by_type[FULL]
        attributes = {self.bases[FULL][0]: parameters.pop("rope_theta")}
        if self.share is not None:
            attributes[self.share[0]] = parameters.pop("partial_rotary_factor", 1.0)
        is_default = parameters == {"rope_type": "default"} and not self.is_scaled
        return attributes if is_default else attributes | {"rope_scaling": parameters}


def kinds_of(config: ModelConfig) -> list[LayerKind]:
    """Return the window and the positions of each layer."""
    return [(get_at(layer, "attention.window"), layer.attention_scheme) for layer in config.layer_configs]


def with_kinds(config: ModelConfig, kinds: Sequence[LayerKind]) -> ModelConfig:
    """Return a config of equal layers with these windows and positions, as the shortest pattern.

    The model has those of the first layer with rotary positions and without a window, or of the first layer.
    """
    if not kinds:
        return config
    layers = len(kinds)
    period = next((n for n in range(1, layers) if all(kinds[i] == kinds[i % n] for i in range(layers))), layers)
    plain = next((kind for kind in kinds if kind[0] is None and isinstance(kind[1], Rotary)), kinds[0])
    window, positions = plain
    config = config.replace(attention=config.attention.replace(window=window), positions=positions)
    if period <= 1:
        return config
    return config.replace(pattern=tuple(_block(config, kind, plain) for kind in kinds[:period]))


def _block(config: ModelConfig, kind: LayerKind, plain: LayerKind) -> Block:
    window, positions = kind
    return Block(
        attention=SAME if window == plain[0] else config.attention.replace(window=window),
        positions=SAME if positions == plain[1] else positions,
    )
