"""The stack of blocks, for unrolled and for scanned layers.

Unrolled, `layers` is a tuple with the weights of each block. Scanned, it is one tree whose arrays have a leading axis
of layers, and `lax.scan` runs over whole periods of the pattern: if layers differ, the body of the scan is one period.
Layers that share weights use those of the block `ModelConfig.block_of_layer`.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from flaxformer.components.component import Aux, Context
from flaxformer.config import ModelConfig
from flaxformer.core.params import Parameters, unstack
from flaxformer.devices.sharding import all_gather_fsdp
from flaxformer.model.blocks import BlockCall, BlockIntermediates, BlockParams, block
from flaxformer.model.cache import BlockState, States
from flaxformer.model.layout import Layers, Periods
from flaxformer.model.remat import rematerialise, rematerialise_branch

Carry = tuple[PyTree, dict[str, Array]]
"""Residual stream, and the values that components pass from layer to layer."""
Layer = tuple[BlockParams, int | Int[Array, ""], BlockState | None]
"""Weights, index and decoding state of one layer."""
LayerResult = tuple[BlockIntermediates | None, Aux, BlockState | None]
LayerFunction = Callable[[Carry, Layer], tuple[Carry, LayerResult]]
StackResult = tuple[Carry, Sequence[BlockIntermediates | None], Aux, PyTree[BlockState]]


def run_layers(
    layers: Layers,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    context: Context,
    key: Array | None,
    states: States | None,
    prefix_context: Context | None,
    remat: str,
) -> tuple[PyTree, Sequence[BlockIntermediates | None] | None, Aux, States]:
    """Apply all blocks.

    Args:
      layers: weights of the blocks, in either layout.
      key: random key of the layers; None evaluates.
      states: decoding states, those of the layers in the layout of `map_layers`; None without decoding.
      prefix_context: context of all tokens of a cache, for mixers without a decoding state.
      remat: name in `model.remat.REMATS`.

    Returns:
      The residual stream, the intermediates of each block if the context asks for them, the `Aux`, and the states.
    """
    configs, is_scanned = config.layer_configs, not isinstance(layers, tuple)

    def run_block(
        block_config: ModelConfig, numbers: tuple[int, ...], carry: Carry, layer: Layer
    ) -> tuple[Carry, LayerResult]:
        (x, carried), (params, index, state) = carry, layer
        layer_key = None if key is None else jax.random.fold_in(key, index)
        edits = None if context.edits is None else dataclasses.replace(context.edits, layers=numbers)
        layer_context = context.replace(layer=index, carried=carried, edits=edits, batch_key=layer_key)
        whole = None if prefix_context is None else prefix_context.replace(layer=index)
        params = all_gather_fsdp(params)
        wrap = functools.partial(rematerialise_branch, remat=remat, scanned=is_scanned)
        x, intermediates, aux, state = block(params, block_config, x, layer_context, BlockCall(state, whole, wrap))
        kept = intermediates if context.return_intermediates else None
        return (x, carried | aux.carried), (kept, aux.replace(intermediates={}, carried={}), state)

    numbers = _numbers(config, is_scanned) if context.edits is not None else [()] * config.layers
    kinds = {(id(block_config), of): block_config for block_config, of in zip(configs, numbers, strict=True)}
    by_kind = {
        kind: rematerialise(_bind_config(run_block, block_config, kind[1]), remat, scanned=is_scanned)
        for kind, block_config in kinds.items()
    }
    functions = [by_kind[id(block_config), of] for block_config, of in zip(configs, numbers, strict=True)]
    shared = shared_states(config, x.shape[:-2], x.shape[-2], x.dtype) if states is None else states.shared
    carry = config.residual.begin(x, config.layers), _initial_carry(configs, x) | shared
    run = _run_scanned if is_scanned else _run_unrolled
    (x, carried), intermediates, aux, last = run(functions, layers, config, carry, states and states.layers)
    last_states = States(last, {name: carried[name] for name in shared})
    return x, intermediates if context.return_intermediates else None, aux, last_states


def _bind_config(
    run_block: Callable[..., tuple[Carry, LayerResult]], block_config: ModelConfig, numbers: tuple[int, ...]
) -> LayerFunction:
    """Return the function of a layer with this config; `jax.checkpoint` needs plain functions."""
    return lambda carry, layer: run_block(block_config, numbers, carry, layer)


def _numbers(config: ModelConfig, is_scanned: bool) -> list[tuple[int, ...]]:
    """Return, for each layer, the numbers of all layers that the same traced code computes."""
    depth, period = config.layers, config.period
    return [tuple(range(index % period, depth, period)) if is_scanned else (index,) for index in range(depth)]


def _initial_carry(configs: Sequence[ModelConfig], x: Array) -> dict[str, Array]:
    """Return the values that components pass from layer to layer, as the first layer reads them."""
    carried: dict[str, Array] = {}
    for block_config in {id(block_config): block_config for block_config in configs}.values():
        for _, branch in block_config.branches():
            carried |= branch.initial_carry(x)
    return carried


def shared_states(config: ModelConfig, batch: tuple[int, ...], capacity: int, dtype: DTypeLike) -> dict[str, PyTree]:
    """Return the states that layers share before the first token, by name."""
    states: dict[str, PyTree] = {}
    for block_config in config.block_configs:
        for _, branch in block_config.branches():
            states |= branch.shared_state(block_config.sizes, batch, capacity, dtype)
    return states


MappedFunction = Callable[[ModelConfig, BlockParams, tuple[int, ...], int | Int[Array, ""]], PyTree]
"""Function of config, weights, numbers of all layers that the same code computes, and number of the layer."""


def map_layers(function: MappedFunction, layers: Layers, config: ModelConfig) -> PyTree:
    """Apply a function to every layer.

    Returns:
      A tuple for unrolled layers; for scanned ones, stacked results, or a tuple of these, one per layer of the period.
    """
    if isinstance(layers, tuple):
        blocks = cast(tuple[BlockParams, ...], layers)
        return tuple(
            function(block_config, blocks[config.block_of_layer(layer)], (layer,), layer)
            for layer, block_config in enumerate(config.layer_configs)
        )
    every = _numbers(config, is_scanned=True)

    def at_place(place: int, weights: BlockParams) -> PyTree:
        block_config, numbers = config.layer_configs[place], every[place]
        return jax.vmap(lambda block, layer: function(block_config, block, numbers, layer))(weights, jnp.array(numbers))

    places = [at_place(place, weights) for place, weights in enumerate(_weights_by_place(layers, config))]
    return places[0] if len(places) == 1 else tuple(places)


def _weights_by_place(layers: Parameters, config: ModelConfig) -> list[BlockParams]:
    """Return the weights of each layer of the period, stacked [depth / period, ...]; shared ones are repeated."""
    if isinstance(layers, Periods):
        return list(cast(tuple[BlockParams, ...], layers.blocks))
    depth, period, stacked = config.layers, config.period, cast(BlockParams, layers)
    if config.blocks < depth:
        numbers = np.array([config.block_of_layer(layer) for layer in range(depth)])
        stacked = jax.tree.map(lambda x: x[numbers], stacked)
    if period == 1:
        return [stacked]
    slices = [operator.itemgetter(slice(place, None, period)) for place in range(period)]
    return [jax.tree.map(select, stacked) for select in slices]


def _run_unrolled(
    functions: Sequence[LayerFunction], layers: Layers, config: ModelConfig, carry: Carry, states: PyTree[BlockState]
) -> StackResult:
    weights, results = cast(tuple[BlockParams, ...], layers), []
    for index, function in enumerate(functions):
        layer = (weights[config.block_of_layer(index)], index, states and states[index])
        with jax.named_scope(f"block_{index}"):
            carry, result = function(carry, layer)
        results.append(result)
    intermediates, auxes, states = zip(*results, strict=True) if results else ((), (), ())
    add_axis = functools.partial(jax.tree.map, lambda x: jnp.asarray(x)[None])
    stacked = [aux.replace(losses=add_axis(aux.losses), statistics=add_axis(aux.statistics)) for aux in auxes]
    return carry, intermediates, _merge(stacked, range(len(auxes))), states


def _run_scanned(
    functions: Sequence[LayerFunction], layers: Layers, config: ModelConfig, carry: Carry, states: PyTree[BlockState]
) -> StackResult:
    period, depth, weights = config.period, config.layers, cast(BlockParams, layers)
    is_shared, states = config.blocks < depth, states if period > 1 or states is None else (states,)

    def run_period(carry: Carry, inputs: PyTree) -> tuple[Carry, tuple[LayerResult, ...]]:
        params, indices, period_states = inputs
        results = []
        for place in range(period):
            layer_params = _shared_weights(weights, config, indices[place]) if is_shared else params[place]
            layer = (layer_params, indices[place], period_states and period_states[place])
            carry, result = functions[place](carry, layer)
            results.append(result)
        return carry, tuple(results)

    indices = jnp.arange(depth).reshape(depth // period, period)
    by_place = None if is_shared else _weights_by_place(weights, config)
    carry, results = jax.lax.scan(run_period, carry, (by_place, indices, states))
    intermediates, auxes, states = zip(*results, strict=True)
    if intermediates[0] is not None:
        single = [unstack(stacked) for stacked in intermediates]
        intermediates = tuple(single[index % period][index // period] for index in range(depth))
    places = [f"blocks/{place}" for place in range(period)] if isinstance(layers, Periods) else None
    return carry, intermediates, _merge(auxes, places), states[0] if period == 1 else states


def _merge(auxes: Sequence[Aux], places: Iterable[object] | None) -> Aux:
    """Merge the outputs of the layers of a period, [depth / period, ...] each: losses are added, statistics stacked.

    Args:
      places: path of the weights of each layer of the period; None if those of all layers are stacked.
    """
    names = dict.fromkeys(name for aux in auxes for name in aux.losses)
    losses = {name: [aux.losses[name].sum(0) for aux in auxes if name in aux.losses] for name in names}
    return Aux(
        losses={name: functools.reduce(operator.add, values) for name, values in losses.items()},
        statistics=_interleave([aux.statistics for aux in auxes]),
        weights=(
            _interleave([aux.weights for aux in auxes])
            if places is None
            else {f"{at}/{path}": x for at, aux in zip(places, auxes, strict=True) for path, x in aux.weights.items()}
        ),
    )


def _shared_weights(weights: BlockParams, config: ModelConfig, index: Int[Array, ""]) -> BlockParams:
    """Return the weights of a layer from stacked blocks that layers share."""
    number = index % config.blocks if config.sharing == "loop" else index * config.blocks // config.layers
    return jax.tree.map(operator.itemgetter(number), weights)


def _interleave(by_place: Sequence[dict[str, PyTree]]) -> dict[str, PyTree]:
    """Merge values of the layers of a period, [depth / period, ...] each, in the order of the layers."""
    if len(by_place) == 1:
        return by_place[0]

    def merge(*values: Array) -> Array:
        return jnp.stack(values, axis=1).reshape(-1, *values[0].shape[1:])

    names = dict.fromkeys(name for place_values in by_place for name in place_values)
    return {
        name: jax.tree.map(merge, *[place_values[name] for place_values in by_place if name in place_values])
        for name in names
    }
