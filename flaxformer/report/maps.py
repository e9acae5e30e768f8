"""Attention maps among the metrics of a study, as `flaxformer.interpret.named_maps` calls them."""

from collections.abc import Sequence

import numpy as np

from flaxformer.analysis.analysis import Analysis
from flaxformer.analysis.arms import ArmSummary
from flaxformer.report.heads import numbers_by_arm
from flaxformer.report.measured import MAP
from flaxformer.report.numbers import number
from flaxformer.report.thinning import evenly
from flaxformer.study.claim import arm_name

MOST_ARMS, MOST_LAYERS = 4, 8
"""Largest numbers of arms, each a figure, and of layers that are drawn."""
Maps = dict[str, np.ndarray]
"""Weights [N, T, S] by the path of the point."""


def arms_with_maps(analysis: Analysis) -> list[ArmSummary]:
    """Return the arms that have attention maps in some run."""
    return [arm for arm, _ in numbers_by_arm(analysis, MAP)]


def attention_maps(analysis: Analysis, arms: Sequence[ArmSummary] | None = None) -> dict[str, Maps]:
    """Return the mean over seeds of the attention maps of each arm that has some, or of some arms, by the arm's name.

    With several seeds, the heads of each layer are put in the order of their mean distance Σ_s A[t, s] |t − s| in each
    seed, the nearest first, since the order of heads has no meaning from seed to seed.
    """
    by_arm = {}
    for arm, runs in numbers_by_arm(analysis, MAP, arms):
        seeds = [_maps(numbers) for numbers in runs]
        ordered = [{path: _by_distance(x) for path, x in maps.items()} for maps in seeds] if len(seeds) > 1 else seeds
        by_arm[arm_name(arm.labels)] = {path: np.mean([maps[path] for maps in ordered], axis=0) for path in ordered[0]}
    return by_arm


def drawn_maps(analysis: Analysis) -> dict[str, Maps]:
    """Return the maps that the report draws: of at most `MOST_ARMS` arms, and `MOST_LAYERS` layers of each."""
    shown = attention_maps(analysis, arms_with_maps(analysis)[:MOST_ARMS])
    return {name: dict(evenly(list(maps.items()), MOST_LAYERS)) for name, maps in shown.items()}


def _maps(numbers: dict[str, float]) -> Maps:
    """Return the maps of one run from its numbers by name."""
    places: dict[str, dict[tuple[int, ...], float]] = {}
    for name, value in numbers.items():
        match = MAP.fullmatch(name)
        assert match is not None
        index = tuple(int(match[axis]) for axis in ("head", "query", "key"))
        places.setdefault(match["path"], {})[index] = value
    maps = {}
    for path, values in sorted(places.items(), key=lambda item: _depth(item[0])):
        maps[path] = np.zeros(np.max(list(values), axis=0) + 1)
        for index, value in values.items():
            maps[path][index] = value
    return maps


def _depth(path: str) -> tuple[bool, int, str]:
    """Return the place of a layer in the order of computation: an encoder's first, then by number."""
    stack, _, inner_path = path.partition("blocks/")
    return not stack, int(inner_path.partition("/")[0]), path


def is_ranked(analysis: Analysis) -> bool:
    """True if the heads are ranked in each seed, since an arm has several."""
    return any(len(runs) > 1 for _, runs in numbers_by_arm(analysis, MAP))


def mean_distances(weights: np.ndarray) -> np.ndarray:
    """Return the mean distance between query and key of each head, [N], of weights [N, T, S]."""
    query, key = np.indices(weights.shape[1:])
    return (weights * np.abs(query - key)).sum((1, 2)) / weights.shape[1]


def _by_distance(weights: np.ndarray) -> np.ndarray:
    return weights[np.argsort(mean_distances(weights), kind="stable")]


def caption(analysis: Analysis, index: int) -> str:
    """Return the caption of the figure of an arm, which names the arm and what is left out."""
    arms = arms_with_maps(analysis)
    [(name, layers)] = attention_maps(analysis, [arms[index]]).items()
    text = f"Attention weights of {name}, of the first positions of the evaluation data: mean over sequences and seeds."
    if len(layers) > MOST_LAYERS:
        text += f" Of {len(layers)} layers, {MOST_LAYERS} are drawn."
    if index == 0 and len(arms) > MOST_ARMS:
        text += f" Of {len(arms)} arms with maps, {MOST_ARMS} have a figure."
    return text + " With several seeds, the heads of each layer are ranked by mean distance in each seed."


def description(analysis: Analysis, index: int) -> str:
    """Return the mean distance of the heads of each drawn layer, in words."""
    name, layers = list(drawn_maps(analysis).items())[index]
    items = [f"{path} {', '.join(number(distance) for distance in mean_distances(x))}" for path, x in layers.items()]
    return f"Attention maps of {name}. Mean distance from query to key per head: {'; '.join(items)}."
