"""The recurrent network that the Transformer replaced, with a Transformer's interface."""

from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer.component import Context
from flaxformer.config import RecurrentConfig, Stream, Vectors
from flaxformer.model.call import Given
from flaxformer.model.embedding import embed
from flaxformer.model.layout import Layout, laid_out
from flaxformer.model.remat import rematerialised
from flaxformer.model.transformer import Outcome
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.dropout import dropout
from flaxformer.nn.linear import linear
from flaxformer.nn.recurrent import elman_step, gru_step, lstm_step, walk
from flaxformer.params import Parameters, declarations, declare, initialise, param, stack, stream, subtree, unstack
from flaxformer.pytree import Node
from flaxformer.sharding import gathered

NOT_READ = ("mask", "source", "source_valid", "memory", "memory_valid")
"""What of `Given` means nothing without attention."""
State = tuple[Float[Array, "*batch D"], ...]
"""What a layer remembers: h; and an LSTM's cell."""


class Layer(Parameters):
    """One recurrent layer; `gates` counts the blocks of each matrix, in the order of `nn.recurrent`."""

    input: Float[Array, "d_model gates d_hidden"] = param(fan_in="d_model")
    recurrent: Float[Array, "d_state gates d_hidden"] = param(fan_in="d_state")
    bias: Float[Array, "gates d_hidden"] = param(init="zeros", decay=False)
    candidate_bias: Float[Array, "d_hidden"] | None = param(init="zeros", decay=False, when="has_candidate_bias")


class Recurrent(Parameters):
    """All weights. `layers` is a tuple of per-layer trees, or one tree with a leading `layers` axis."""

    embedding: Any = subtree(component="embedding")
    layers: tuple[Layer, ...] = subtree(repeat="layers")
    head: Any = subtree(component="head")


class RecurrentCache(Node):
    """The state after the tokens so far: of one size, however many they are."""

    layers: Any
    """A `State` a layer, or one with a leading `layers` axis, as the weights are laid out."""
    used: Int[Array, ""]
    """Tokens read so far, padding too."""


class RecurrentIntermediates(Node):
    """What each stage produced: the embeddings, h of every layer, the head's input."""

    embedded: Float[Array, "*batch T D"]
    layers: tuple[Float[Array, "*batch T D"], ...]
    final: Float[Array, "*batch T D"]


def specs(config: RecurrentConfig) -> Recurrent:
    """Every weight's declaration under a config: shapes, axes, initialisers, decay."""
    return declare(Recurrent, config)


def init(key: Array, config: RecurrentConfig, layout: Layout = "unrolled") -> Recurrent:
    """Draw the weights. The numbers depend on key and path alone, never on the layout or on other weights."""
    drawn = initialise(stream(key, "parameters"), declarations(Recurrent, config), config.initial_std)
    return with_layout(drawn, layout)


def with_layout(params: Recurrent, layout: Layout) -> Recurrent:
    """The same weights with layers unrolled (a tuple) or scanned (stacked); "auto" decides by depth."""
    return params.replace(layers=laid_out(params.layers, layout))


def new_cache(
    params: Recurrent, config: RecurrentConfig, batch: tuple[int, ...], slots: int, **given: Unpack[Given]
) -> RecurrentCache:
    """The state before the first token, h_0 = 0. It has no slots to fill: it takes any number of tokens.

    Raises:
      ValueError: given a source or a memory, which no recurrent model reads.
    """
    _check(given)
    empty = jnp.zeros((*batch, config.d_model))
    state = (empty, empty) if config.cell == "lstm" else (empty,)
    if isinstance(params.layers, tuple):
        return RecurrentCache(layers=tuple(state for _ in params.layers), used=jnp.int32(0))
    return RecurrentCache(layers=stack((state,) * config.layers), used=jnp.int32(0))


def run(
    params: Recurrent,
    config: RecurrentConfig,
    inputs: Array,
    given: Given,
    *,
    dropout_key: Array | None = None,
    cache: RecurrentCache | None = None,
    keep: bool = False,
    remat: str = "none",
) -> Outcome:
    """One call of the model, with all that it produces; `model.apply` and `model.extend` are its public faces.

    Args:
      given: padding, which changes no state, on whichever side it is; token types. Positions and a prefix are of no
        consequence: a token sees what is before it, in the order it comes in.
      dropout_key: gives training behaviour; None evaluates.
      cache: the inputs follow its tokens.
      keep: hand back the intermediates.
      remat: what a backward pass computes again, see `model.remat`.

    Raises:
      ValueError: given a mask, a source or a memory, which no recurrent model reads.
    """
    _check(given)
    params = gathered(params)
    valid = given.get("valid")
    keys = {name: None if dropout_key is None else stream(dropout_key, name) for name in ("embedding", "layers")}
    with jax.named_scope("embedding"):
        x, positions = _embedded(params.embedding, config, inputs, given)
        x = embedded = dropout(keys["embedding"], config.dropout, x)
    before = new_cache(params, config, x.shape[:-2], 0) if cache is None else cache
    x, kept, states = _layers(params.layers, config, x, valid, keys["layers"], before.layers, remat)
    with jax.named_scope("head"):
        context = Context(query_positions=positions, key_positions=positions, valid=valid)
        output, aux = config.head.answer(params.head, x, params.embedding.tokens, context, config.norm_kind)
    return Outcome(
        output=output,
        aux=aux.within("head"),
        cache=None if cache is None else RecurrentCache(layers=states, used=cache.used + x.shape[-2]),
        intermediates=RecurrentIntermediates(embedded, kept, x) if keep else None,
    )


def _check(given: Given) -> None:
    """Refuse what a recurrent model cannot read, rather than pass over it."""
    found = [name for name in NOT_READ if given.get(name) is not None]
    if found:
        raise ValueError(f"given is {found}; expected none of these, for a recurrent model has no attention")


def _embedded(
    weights: Any, config: RecurrentConfig, inputs: Array, given: Given
) -> tuple[Float[Array, "*batch T D"], Int[Array, "*#batch T"]]:
    """X and positions. Padding is 0, whatever it was: multiplied by 0, a NaN is still one."""
    valid = given.get("valid")
    if valid is not None and isinstance(config.inputs, Vectors | Stream):
        inputs = jnp.where(valid[..., None], inputs, 0)
    x, positions = embed(weights, None, config, inputs, given.get("positions"), given.get("token_types"))
    return x if valid is None else jnp.where(valid[..., None], x, 0), positions


def _layers(
    layers: tuple[Layer, ...] | Layer,
    config: RecurrentConfig,
    x: Float[Array, "*batch T D"],
    valid: Bool[Array, "*batch T"] | None,
    key: Array | None,
    states: Any,
    remat: str,
) -> tuple[Float[Array, "*batch T D"], Any, Any]:
    """Every layer in turn: the one place that knows whether layers are unrolled or scanned.

    Returns the last one's output, h of each, and their states after the last token.
    """

    def body(x: Array, each: Any) -> tuple[Array, Any]:
        params, index, state = each
        params = gathered(params)
        own_key = None if key is None else jax.random.fold_in(key, index)
        hidden, state = walk(_step(params, config), state, linear(x, params.input, params.bias), valid)
        return dropout(own_key, config.dropout, hidden), (hidden, state)

    body = rematerialised(body, remat, scanned=not isinstance(layers, tuple))
    if isinstance(layers, tuple):
        ends = []
        for index, params in enumerate(layers):
            with jax.named_scope(f"layer_{index}"):
                x, end = body(x, (params, index, states[index]))
            ends.append(end)
        kept, states = zip(*ends, strict=True) if ends else ((), ())
        return x, kept, states
    x, (kept, states) = jax.lax.scan(body, x, (layers, jnp.arange(config.layers), states))
    return x, unstack(kept), states


def _step(params: Layer, config: RecurrentConfig) -> Callable[[State, Array], State]:
    """The cell's step, with the layer's weights in it."""
    recurrent = params.recurrent
    if config.cell == "elman":
        activation = ACTIVATIONS[config.activation]
        return lambda state, inputs: (elman_step(state[0], inputs, recurrent, activation),)
    if config.cell == "gru":
        return lambda state, inputs: (gru_step(state[0], inputs, recurrent, params.candidate_bias),)  # type: ignore[arg-type]
    return lambda state, inputs: lstm_step(state[0], state[1], inputs, recurrent)
