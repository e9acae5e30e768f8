"""The stack: every block in turn. The one place that knows whether layers are unrolled or scanned.

Unrolled, `layers` is a tuple with the weights of each block. Scanned, it is one tree whose arrays have a leading axis,
and a scan runs over whole periods of the pattern: with layers that differ, its body is one period. Layers that share
weights read those of `ModelConfig.block_of_layer`.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flaxformer.component import Aux, Context
from flaxformer.config import ModelConfig
from flaxformer.model.blocks import block
from flaxformer.model.layout import Periods
from flaxformer.model.remat import rematerialised
from flaxformer.params import unstack
from flaxformer.sharding import all_gather_fsdp


def run_layers(
    layers: Any,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    context: Context,
    key: Array | None,
    states: Any,
    cache_context: Context | None,
    remat: str,
) -> tuple[Any, Any, Aux, Any]:
    """The residual stream after all blocks; what each did, where it is asked for; their `Aux`; their decoding states.

    Args:
      whole: the context of all tokens of a cache, for mixers that read them again.
    """
    configs, is_scanned = config.layer_configs, not isinstance(layers, tuple)

    def body(stream: Any, layer: Any, own: ModelConfig) -> tuple[Any, Any]:
        (x, carried), (params, index, state) = stream, layer
        own_key = None if key is None else jax.random.fold_in(key, index)
        here = context.replace(layer=index, carried=carried)
        every = None if cache_context is None else cache_context.replace(layer=index)
        x, did, aux, state = block(all_gather_fsdp(params), own, x, here, own_key, state, every)
        kept = did if context.return_intermediates else None
        return (x, carried | aux.carried), (kept, aux.replace(intermediates={}, carried={}), state)

    different = {id(own): rematerialised(_of(body, own), remat, scanned=is_scanned) for own in configs}
    bodies = [different[id(own)] for own in configs]
    stream = config.residual.begin(x, config.layers), _initial_carry(configs, x)
    run = _scanned if is_scanned else _unrolled
    (x, _), kept, aux, states = run(bodies, layers, config, stream, states)
    return x, kept if context.return_intermediates else None, aux, states


def _of(body: Callable[..., Any], own: ModelConfig) -> Callable[[Any, Any], Any]:
    return lambda stream, layer: body(stream, layer, own)


def _initial_carry(configs: Sequence[ModelConfig], x: Array) -> dict[str, Array]:
    """Return the values that components hand from layer to layer, as the first layer reads them."""
    found: dict[str, Array] = {}
    for own in {id(own): own for own in configs}.values():
        for _, branch in own.branches():
            found |= branch.initial_carry(x)
    return found


def map_layers(function: Callable[[ModelConfig, Any], Any], layers: Any, config: ModelConfig) -> Any:
    """function(config, weights) of every layer: a tuple; or of scanned layers, stacked, a tuple for a longer period."""
    if isinstance(layers, tuple):
        numbers = map(config.block_of_layer, range(config.layers))
        return tuple(function(own, layers[number]) for own, number in zip(config.layer_configs, numbers, strict=True))
    places = [
        jax.vmap(functools.partial(function, config.layer_configs[place]))(weights)
        for place, weights in enumerate(_of_places(layers, config))
    ]
    return places[0] if len(places) == 1 else tuple(places)


def _of_places(layers: Any, config: ModelConfig) -> list[Any]:
    """The stacked weights of each place of the period, [depth / period, ...]; shared ones are there once a layer."""
    if isinstance(layers, Periods):
        return list(layers.blocks)
    depth, period = config.layers, config.period
    if config.blocks < depth:
        numbers = np.array([config.block_of_layer(layer) for layer in range(depth)])
        layers = jax.tree.map(lambda x: x[numbers], layers)
    if period == 1:
        return [layers]
    every = [operator.itemgetter(slice(place, None, period)) for place in range(period)]
    return [jax.tree.map(of_place, layers) for of_place in every]


def _unrolled(bodies: Any, layers: Any, config: ModelConfig, stream: Any, states: Any) -> tuple[Any, Any, Aux, Any]:
    ends = []
    for index, body in enumerate(bodies):
        layer = (layers[config.block_of_layer(index)], index, states and states[index])
        with jax.named_scope(f"block_{index}"):
            stream, end = body(stream, layer)
        ends.append(end)
    kept, found, states = zip(*ends, strict=True) if ends else ((), (), ())
    losses: dict[str, Array] = {}
    for aux in found:
        losses |= {name: losses[name] + value if name in losses else value for name, value in aux.losses.items()}
    names = dict.fromkeys(name for aux in found for name in aux.statistics)
    statistics = {name: jnp.stack([aux.statistics[name] for aux in found if name in aux.statistics]) for name in names}
    weights = {f"{i}/{path}": value for i, aux in enumerate(found) for path, value in aux.weights.items()}
    return stream, kept, Aux(losses=losses, statistics=statistics, weights=weights), states


def _scanned(bodies: Any, layers: Any, config: ModelConfig, stream: Any, states: Any) -> tuple[Any, Any, Aux, Any]:
    period, depth = config.period, config.layers
    is_shared, states = config.blocks < depth, states if period > 1 or states is None else (states,)

    def one_period(stream: Any, these: Any) -> tuple[Any, tuple[Any, ...]]:
        params, indices, own_states = these
        ends = []
        for place in range(period):
            own = layers if is_shared else params[place]
            if is_shared:
                number = indices[place] % config.blocks
                number = number if config.sharing == "loop" else indices[place] * config.blocks // depth
                own = jax.tree.map(operator.itemgetter(number), layers)
            layer = (own, indices[place], own_states and own_states[place])
            stream, end = bodies[place](stream, layer)
            ends.append(end)
        return stream, tuple(ends)

    weights = None if is_shared else _of_places(layers, config)
    indices = jnp.arange(depth).reshape(depth // period, period)
    stream, ends = jax.lax.scan(one_period, stream, (weights, indices, states))
    kept, found, states = zip(*ends, strict=True)
    if kept[0] is not None:
        single = [unstack(one) for one in kept]
        kept = tuple(single[index % period][index // period] for index in range(depth))
    losses = [{name: value.sum(0) for name, value in aux.losses.items()} for aux in found]
    names = dict.fromkeys(name for own in losses for name in own)
    aux = Aux(
        losses={name: sum(own[name] for own in losses if name in own) for name in names},
        statistics=_interleaved([aux.statistics for aux in found]),
        weights=(
            {f"blocks/{place}/{path}": value for place, aux in enumerate(found) for path, value in aux.weights.items()}
            if isinstance(layers, Periods)
            else _interleaved([aux.weights for aux in found])
        ),
    )
    return stream, kept, aux, states[0] if period == 1 else states


def _interleaved(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Values of the places of a period, [depth / period, ...] each, in the order of the layers."""
    if len(found) == 1:
        return found[0]

    def one(*values: Array) -> Array:
        return jnp.stack(values, axis=1).reshape(-1, *values[0].shape[1:])

    names = dict.fromkeys(name for own in found for name in own)
    return {name: jax.tree.map(one, *[own[name] for own in found if name in own]) for name in names}
