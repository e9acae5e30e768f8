"""Beam search: the most probable continuations of a prompt."""

import functools
import numbers
from collections.abc import Callable
from typing import TypeVar, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.core.pytree import Node
from flaxformer.devices.sharding import mesh_for_rows, shard_map_batch
from flaxformer.model.cache import Cache
from flaxformer.model.call import PrefixInputs
from flaxformer.model.decoding import Decoder, PromptSettings, cache_capacity, log_softmax, prefix_inputs_of
from flaxformer.model.decoding_edits import EditArguments, check_edits
from flaxformer.model.interface import extend_edited
from flaxformer.model.mapped_edits import AXIS, map_edits
from flaxformer.model.prefill import read_prompt
from flaxformer.model.prompt import check_count, check_prompt
from flaxformer.model.weights import Transformer
from flaxformer.system.errors import UserError, quote

TreeT = TypeVar("TreeT")
LARGEST_PENALTY = 8
"""Largest exponent of a length; with it, scores of 10,000 tokens are within the range of float32."""
Shared = tuple[Decoder, Float[Array, ""]]
"""Arguments that all prompts share, and the length penalty."""


class Beams(Node):
    """Best continuations of each prompt, best first."""

    tokens: Int[Array, "*batch beams steps"]
    """Token ids; `end` after the end of a continuation."""
    lengths: Int[Array, "*batch beams"]
    """Number of tokens up to and including `end`."""
    scores: Float[Array, "*batch beams"]
    """log P(tokens | prompt) / length^length_penalty, in nats; −∞, with length 0, if there are fewer continuations."""


class _Search(Node):
    """State of the search for one prompt: unfinished hypotheses, with their caches, and the best finished ones."""

    cache: Cache
    logits: Float[Array, "beams V"]
    tokens: Int[Array, "beams steps"]
    totals: Float[Array, "beams"]
    """log P(tokens | prompt)."""
    best: Beams
    done: Bool[Array, ""]


def beam_search(
    params: Transformer,
    config: ModelConfig,
    prompt: Int[ArrayLike, "B T"],
    *,
    steps: int,
    beams: int,
    length_penalty: float = 1.0,
    **settings: Unpack[PromptSettings],
) -> Beams:
    """Return the best continuations of each prompt that a search with `beams` hypotheses finds.

    The score of a continuation of n tokens, including `end`, is log P(tokens | prompt) / n^length_penalty, as in
    Hugging Face (Wu et al. 2016, equation 14, divide by ((5 + n) / 6)^α instead).

    Each step extends every hypothesis by every token. Of the `beams` most probable extensions, those that end enter a
    list of the `beams` best by score; the `beams` most probable that do not end are the next hypotheses. The search of
    a prompt stops when its list is full and no hypothesis has a higher score, at its current length, than the worst of
    the list. After `steps` tokens, unfinished hypotheses enter the list. One beam is greedy decoding; V^steps beams are
    an exhaustive search.

    Args:
      params, config, prompt, steps: as for `generate`.
      beams: number of hypotheses, and of continuations returned.
      length_penalty: 0 compares probabilities, 1 their geometric means; larger values favour long continuations.
      settings: see `PromptSettings`. Scores are those of `apply` with the same edits. A function of an edit gets the
        activations of all prompts, as in `generate`; of each new token, it is applied to the first hypotheses of all
        prompts, then to the second, and so on.

    Raises:
      UserError: an invalid argument.
    """
    end, edit, prefix_inputs = settings.get("end"), settings.get("edit"), prefix_inputs_of(settings, PromptSettings)
    tokens, is_valid = check_prompt(config, prompt, settings.get("valid"), steps, end, prefix_inputs)
    check_count("beams", beams)
    if not (isinstance(length_penalty, numbers.Real) and abs(length_penalty) <= LARGEST_PENALTY):
        raise UserError(
            f"length_penalty is {quote(length_penalty)}; expected a number from −{LARGEST_PENALTY} to {LARGEST_PENALTY}"
        )
    check_edits(params, config, edit, len(tokens), tokens.shape[1] + steps - 1, prefix_inputs)
    decoder = Decoder(params, config, EditArguments.of(edit), end=end)
    mesh = None if edit else mesh_for_rows(len(tokens))  # edits may have values per row
    return _search(decoder, tokens, is_valid, prefix_inputs, length_penalty, steps, beams, mesh)


@functools.partial(jax.jit, static_argnums=(5, 6, 7))
def _search(
    decoder: Decoder,
    prompt: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
    prefix_inputs: PrefixInputs,
    penalty: Float[Array, ""],
    steps: int,
    beams: int,
    mesh: AbstractMesh | None,
) -> Beams:
    """Search the continuations of each prompt of a batch."""
    capacity = cache_capacity(decoder.config, prompt.shape[-1] + steps)

    def search_one(shared: Shared, row: tuple[Array, Array, PrefixInputs]) -> Beams:
        (decoder, penalty), (prompt, valid, prefix_inputs) = shared, row
        params, config, edits = decoder.params, decoder.config, map_edits(decoder.edits.edits())
        fill = 0 if decoder.end is None else decoder.end
        # A batch of one, so that components have an axis of the batch here as everywhere.
        prompt, valid, prefix_inputs = jax.tree.map(lambda x: x[None], (prompt, valid, prefix_inputs))
        cache, logits = read_prompt(params, config, prompt, valid, prefix_inputs, capacity, edits=edits)
        cache = _map_hypotheses(lambda x: jnp.broadcast_to(x, (beams, *x.shape)), cache)
        logits = jnp.tile(logits, (beams, 1))
        tokens, none = jnp.full((beams, steps), fill, jnp.int32), jnp.full(beams, -jnp.inf)
        # All hypotheses begin as the prompt; only the first may be extended.
        search = _Search(
            cache=cache,
            logits=logits,
            tokens=tokens,
            totals=none.at[0].set(0.0),
            best=Beams(tokens, jnp.zeros(beams, jnp.int32), none),
            done=jnp.bool_(False),
        )
        step = functools.partial(_step, shared)
        search, _ = jax.lax.scan(step, search, jnp.arange(steps))
        scores = jnp.where(search.done, -jnp.inf, _score(search.totals, steps, penalty))
        best = _merge_beams(search.best, Beams(search.tokens, jnp.full(beams, steps), scores))
        is_filled = jnp.isfinite(best.scores)
        return best.replace(
            tokens=jnp.where(is_filled[:, None], best.tokens, fill), lengths=jnp.where(is_filled, best.lengths, 0)
        )

    search_all = jax.vmap(search_one, in_axes=(None, 0), axis_name=AXIS)
    return shard_map_batch(search_all, (decoder, penalty), (prompt, valid, prefix_inputs), mesh)


def _step(shared: Shared, search: _Search, step: Int[Array, ""]) -> tuple[_Search, None]:
    """Extend every hypothesis of a prompt by one token."""
    (decoder, penalty), end = shared, shared[0].end
    beams, vocabulary = search.logits.shape
    extended = (search.totals[:, None] + log_softmax(search.logits)).reshape(-1)
    # At most one extension of each hypothesis ends, so that of twice the beams, enough do not end.
    totals, index = jax.lax.top_k(extended, min(2 * beams, extended.size))
    origin, token = index // vocabulary, index % vocabulary
    tokens = search.tokens[origin].at[:, step].set(token)
    ends = jnp.zeros(token.shape, bool) if end is None else token == end
    ending = ends & (jnp.arange(len(ends)) < beams)
    ended = Beams(tokens, jnp.full(len(ends), step + 1), jnp.where(ending, _score(totals, step + 1, penalty), -jnp.inf))
    best = jax.tree.map(
        lambda old, new: jnp.where(search.done, old, new), search.best, _merge_beams(search.best, ended)
    )
    totals, chosen = jax.lax.top_k(jnp.where(ends, -jnp.inf, totals), beams)
    tokens, origin = tokens[chosen], origin[chosen]
    cache = _map_hypotheses(lambda x: x[origin], search.cache)
    axes = jax.tree.map(lambda x: 0 if x.ndim else None, cache)

    def extend_one(token: Array, cache: Cache) -> tuple[Array, Cache]:
        edits = map_edits(decoder.edits.edits())
        return extend_edited(decoder.params, decoder.config, token[None, None], {}, cache, edits)

    extend_all = jax.vmap(extend_one, in_axes=(0, axes), out_axes=(0, axes))
    logits, cache = extend_all(token[chosen], cache)
    done = search.done | (best.scores.min() >= _score(totals, step + 1, penalty).max())
    return _Search(cache, logits[:, 0, 0], tokens, totals, best, done), None


def _map_hypotheses(f: Callable[[Array], Array], cache: TreeT) -> TreeT:
    """Apply f to the arrays that differ between hypotheses: all except scalars, such as the number of tokens so far.

    With such a scalar per hypothesis, every write to the cache would be a scatter.
    """
    return jax.tree.map(lambda x: f(x) if x.ndim else x, cache)


def _score(
    totals: Float[Array, "beams"], length: int | Int[Array, ""], penalty: Float[Array, ""]
) -> Float[Array, "beams"]:
    return totals / jnp.power(jnp.float32(length), penalty)


def _merge_beams(first: Beams, second: Beams) -> Beams:
    """Return the best of two lists of continuations, as many as the first has, best first."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)
    scores, chosen = jax.lax.top_k(both.scores, len(first.scores))
    return Beams(both.tokens[chosen], both.lengths[chosen], scores)
