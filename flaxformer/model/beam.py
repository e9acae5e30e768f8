"""Beam search: the most probable continuations, not the most probable next tokens."""

import functools
from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.model.call import PrefixInputs
from flaxformer.model.decoding import cache_capacity, log_softmax, read_prompt
from flaxformer.model.interface import extend
from flaxformer.model.prompt import checked
from flaxformer.pytree import Node
from flaxformer.sharding import mesh_for_rows, shard_map_batch
from flaxformer.struct import UserError


class Beams(Node):
    """The best continuations of each prompt, best first."""

    tokens: Int[Array, "*batch beams steps"]
    """After a continuation's end, `end` again and again."""
    lengths: Int[Array, "*batch beams"]
    """Number of tokens that are real, `end` among them."""
    scores: Float[Array, "*batch beams"]
    """log P(tokens | prompt) / length^length_penalty, in nats; −∞, of length 0, where there are fewer continuations."""


class _Search(Node):
    """The search for one prompt: hypotheses that go on, each with its own cache, and the best that have ended."""

    cache: Any
    logits: Float[Array, "beams V"]
    tokens: Int[Array, "beams steps"]
    totals: Float[Array, "beams"]
    """log P(tokens | prompt)."""
    best: Beams
    done: Bool[Array, ""]


def beam_search(
    params: Any,
    config: ModelConfig,
    prompt: Int[ArrayLike, "B T"],
    *,
    steps: int,
    beams: int,
    end: int | None = None,
    length_penalty: float = 1.0,
    valid: Bool[ArrayLike, "B T"] | None = None,
    **given: Unpack[PrefixInputs],
) -> Beams:
    """The `beams` best continuations of each prompt that a search keeping `beams` hypotheses finds.

    A continuation of n tokens, `end` among them, scores log P(tokens | prompt) / n^length_penalty: 0 compares
    probabilities, 1 their geometric means, and more favours the long (the formula of Hugging Face; Wu et al. 2016,
    equation 14, divide by ((5 + n) / 6)^α instead).

    At each step, every hypothesis is extended by every token. Of the `beams` most probable extensions, those that end
    go to a list of the `beams` best by score; the `beams` most probable that do not end go on. A prompt's search is
    over when its list is full and no hypothesis that goes on has, at its length so far, a higher score than the worst
    of the list. Hypotheses that go on after `steps` tokens compete with the list as they are.
    One beam is greedy decoding; V^steps beams, for V tokens, are an exhaustive search.

    Args:
      prompt, valid, steps, end, given: as in `generate`.

    Raises:
      UserError: as `generate`; fewer than one beam.
    """
    tokens, real = checked(config, prompt, valid, steps, end, given)
    if beams < 1:
        raise UserError(f"beams is {beams}; expected at least 1")
    mesh = mesh_for_rows(len(tokens))
    return _searched(params, config, tokens, real, given, end, length_penalty, steps, beams, mesh)


@functools.partial(jax.jit, static_argnums=(7, 8, 9))
def _searched(
    params: Any,
    config: ModelConfig,
    prompt: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
    given: PrefixInputs,
    end: Int[Array, ""] | None,
    penalty: Float[Array, ""],
    steps: int,
    beams: int,
    mesh: Mesh | None,
) -> Beams:
    """The search for one prompt, mapped over the batch."""
    room = cache_capacity(config, prompt.shape[-1] + steps)

    def one(shared: Any, own: Any) -> Beams:
        (params, config, end, penalty), (prompt, valid, given) = shared, own
        fill = 0 if end is None else end
        cache, logits = read_prompt(params, config, prompt, valid, given, room)
        cache, logits = _own(lambda x: jnp.broadcast_to(x, (beams, *x.shape)), cache), jnp.tile(logits, (beams, 1))
        tokens, none = jnp.full((beams, steps), fill, jnp.int32), jnp.full(beams, -jnp.inf)
        # All hypotheses are the prompt at first, so only one of them counts.
        search = _Search(
            cache=cache,
            logits=logits,
            tokens=tokens,
            totals=none.at[0].set(0.0),
            best=Beams(tokens, jnp.zeros(beams, jnp.int32), none),
            done=jnp.bool_(False),
        )
        step = functools.partial(_step, params, config, end, penalty)
        search, _ = jax.lax.scan(step, search, jnp.arange(steps))
        scores = jnp.where(search.done, -jnp.inf, _score(search.totals, steps, penalty))
        best = _better(search.best, Beams(search.tokens, jnp.full(beams, steps), scores))
        found = jnp.isfinite(best.scores)
        return best.replace(
            tokens=jnp.where(found[:, None], best.tokens, fill), lengths=jnp.where(found, best.lengths, 0)
        )

    each = jax.vmap(one, in_axes=(None, 0))
    return shard_map_batch(each, (params, config, end, penalty), (prompt, valid, given), mesh)


def _step(
    params: Any,
    config: ModelConfig,
    end: Int[Array, ""] | None,
    penalty: Float[Array, ""],
    search: _Search,
    step: Array,
) -> tuple[_Search, None]:
    """Every hypothesis by one token longer."""
    beams, vocabulary = search.logits.shape
    extended = (search.totals[:, None] + log_softmax(search.logits)).reshape(-1)
    # An extension of each hypothesis ends at most, so that twice the beams have enough that go on.
    totals, place = jax.lax.top_k(extended, min(2 * beams, extended.size))
    origin, token = place // vocabulary, place % vocabulary
    tokens = search.tokens[origin].at[:, step].set(token)
    ends = jnp.zeros(token.shape, bool) if end is None else token == end
    ending = ends & (jnp.arange(len(ends)) < beams)
    ended = Beams(tokens, jnp.full(len(ends), step + 1), jnp.where(ending, _score(totals, step + 1, penalty), -jnp.inf))
    best = jax.tree.map(lambda old, new: jnp.where(search.done, old, new), search.best, _better(search.best, ended))
    totals, chosen = jax.lax.top_k(jnp.where(ends, -jnp.inf, totals), beams)
    tokens, origin = tokens[chosen], origin[chosen]
    cache = _own(lambda x: x[origin], search.cache)
    axes = jax.tree.map(lambda x: 0 if x.ndim else None, cache)
    one = functools.partial(extend, params, config)
    logits, cache = jax.vmap(one, in_axes=(0, axes), out_axes=(0, axes))(token[chosen][:, None], cache)
    done = search.done | (best.scores.min() >= _score(totals, step + 1, penalty).max())
    return _Search(cache, logits[:, 0], tokens, totals, best, done), None


def _own(f: Callable[[Array], Array], cache: Any) -> Any:
    """f of what each hypothesis has of its own: all but single numbers, such as how many positions are used.

    Mapped over hypotheses, that number would make every write to the cache a scatter.
    """
    return jax.tree.map(lambda x: f(x) if x.ndim else x, cache)


def _score(
    totals: Float[Array, "beams"], length: int | Int[Array, ""], penalty: Float[Array, ""]
) -> Float[Array, "beams"]:
    return totals / jnp.power(jnp.float32(length), penalty)


def _better(first: Beams, second: Beams) -> Beams:
    """The best of both, as many as the first has, best first."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)
    scores, chosen = jax.lax.top_k(both.scores, len(first.scores))
    return Beams(both.tokens[chosen], both.lengths[chosen], scores)
