"""The layers: their parameters, and what they compute."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer.config import LearnedPositions, ModelConfig
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.attention import dot_product_attention
from flaxformer.nn.linear import linear
from flaxformer.nn.masks import Mask
from flaxformer.params import Parameters, param, subtree


class Norm(Parameters):
    """The affine part of one normalisation; both None for a norm without one."""

    gain: Float[Array, "d_model"] | None = param(init="ones", decay=False, when="norm_kind.has_gain")
    bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="norm_kind.has_bias")


def normalise(norm: Norm | None, config: ModelConfig, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """The config's kind of norm; an empty slot (None) is the identity."""
    if norm is None:
        return x
    return config.norm_kind.apply(x, norm.gain, norm.bias, epsilon=config.norm_kind.epsilon)


class Attention(Parameters):
    """Multi-head attention: three maps into heads, one map out of them."""

    query: Float[Array, "d_model heads d_head"] = param(fan_in="d_model")
    key: Float[Array, "d_model key_value_heads d_head"] = param(fan_in="d_model")
    value: Float[Array, "d_model key_value_heads d_value"] = param(fan_in="d_model")
    out: Float[Array, "heads d_value d_model"] = param(fan_in="heads d_value")
    query_bias: Float[Array, "heads d_head"] | None = param(init="zeros", decay=False, when="attention_bias")
    key_bias: Float[Array, "key_value_heads d_head"] | None = param(init="zeros", decay=False, when="attention_bias")
    value_bias: Float[Array, "key_value_heads d_value"] | None = param(init="zeros", decay=False, when="attention_bias")
    out_bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="attention_bias")


def attention(
    params: Attention,
    config: ModelConfig,
    x: Float[Array, "*batch T D"],
    memory: Float[Array, "*batch S D"],
    mask: Mask | None,
) -> Float[Array, "*batch T D"]:
    """Y = Concat_h(softmax(Q_h K_hᵀ · scale) V_h) W_O, with Q from x; K, V from memory (x itself in self-attention).

    Sources: Vaswani et al. 2017, section 3.2; "Transformers like a physicist", equation 1.
    """
    query = linear(x, params.query, params.query_bias)
    key = linear(memory, params.key, params.key_bias)
    value = linear(memory, params.value, params.value_bias)
    mixed = dot_product_attention(query, key, value, mask=mask, scale=logit_scale(config), logit_cap=config.logit_cap)
    return linear(mixed, params.out, params.out_bias, contract=2)


def logit_scale(config: ModelConfig) -> Float[Array, ""]:
    """width ** −exponent, written so that powers of two are exact."""
    width = {"head": config.sizes["d_head"], "model": config.d_model}[config.logit_scale_width]
    return jnp.exp2(-config.logit_scale_exponent * jnp.log2(width))


class FeedForward(Parameters):
    """The two-layer network applied to each token alone."""

    up: Float[Array, "d_model d_ff"] = param(fan_in="d_model")
    down: Float[Array, "d_ff d_model"] = param(fan_in="d_ff")
    up_bias: Float[Array, "d_ff"] | None = param(init="zeros", decay=False, when="feed_forward_bias")
    down_bias: Float[Array, "d_model"] | None = param(init="zeros", decay=False, when="feed_forward_bias")


def feed_forward(params: FeedForward, config: ModelConfig, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """FFN(x) = activation(x W_1 + b_1) W_2 + b_2."""
    hidden = ACTIVATIONS[config.activation](linear(x, params.up, params.up_bias))
    return linear(hidden, params.down, params.down_bias)


class Embedding(Parameters):
    """What turns tokens into vectors: a row a token, and a row a position where positions are learned."""

    tokens: Float[Array, "vocabulary d_model"] = param(init="embedding", decay=False)
    positions: Float[Array, "max_length d_model"] | None = param(
        init="positions", decay=False, when="positions.learned"
    )


def embed(params: Embedding, config: ModelConfig, tokens: Int[Array, "*batch T"]) -> Float[Array, "*batch T D"]:
    """X_t = E[token_t] + position_t.

    Raises:
      ValueError: a sequence longer than a learned table, which indexing would otherwise clamp silently.
    """
    length = tokens.shape[-1]
    x = params.tokens[tokens]
    if isinstance(config.positions, LearnedPositions):
        if length > config.positions.max_length:
            raise ValueError(f"sequence length is {length}; expected at most max_length {config.positions.max_length}")
        added = params.positions[:length]  # type: ignore[index]
    else:
        added = config.positions.encode(jnp.arange(length), config.d_model)
    return x if added is None else x + jnp.expand_dims(added, range(tokens.ndim - 1))


class Head(Parameters):
    """The language-model head; without a matrix of its own it shares the embedding's (one leaf, used twice)."""

    matrix: Float[Array, "d_model vocabulary"] | None = param(fan_in="d_model", when="untied_head")
    bias: Float[Array, "vocabulary"] | None = param(init="zeros", decay=False, when="head_bias")


def logits(params: Head, embedding: Embedding, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
    """p(token) ∝ exp(x · g_token): x G, or x Eᵀ when tied."""
    return linear(x, embedding.tokens.T if params.matrix is None else params.matrix, params.bias)


def dropout(key: Array | None, rate: float | Array | None, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Zero each number with probability rate and scale the rest by 1 / (1 − rate); no key or no rate: identity."""
    if key is None or rate is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


class Norms(Parameters):
    """The three norm slots of one residual branch; an empty slot is None."""

    pre: Norm | None = subtree(when="norm.pre")
    post: Norm | None = subtree(when="norm.post")
    stream: Norm | None = subtree(when="norm.stream")
