"""Compression: all tokens of a sequence are read off the vector of its last token.

    ŷ_t = MLP(x_T + p_t), with the sinusoids p of the place t, and a network of two layers of the width of the model

Family: tasks
Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv:2403.17844 (MAD);
github.com/athms/mad-lab at 0f49a45, generate_compression_instance and the decoder of AutoEncoder (exact GELU, its
norms without gains, no biases here). New examples in every step; the authors draw 12,800 once.
Claim: the scores of architectures on MAD's tasks correlate with their perplexities at compute-optimal sizes.
Cost: two matrices of the width of the model, and their products per token.
Verified: counts of tokens of the published generator; the head, and its gradient, in a float64 loop over tokens.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import Batch, Context, LanguageModel, ModelConfig, Norm, SyntheticTask, param, static
from flaxformer.nn.linear import linear
from flaxformer.nn.positions import sinusoidal

REASON = "every output reads the last token, by design"


class LastTokenDecoder(LanguageModel):
    """Logits of the token at every place, from the vector of the last token and the place alone."""

    exempt_from: ClassVar = dict.fromkeys(("causality", "decoding", "padding"), REASON)
    by_token: ClassVar[bool] = True

    class Weights(LanguageModel.Weights):
        """Matrices of the two layers."""

        first: Float[Array, "d_model d_model"] = param(fan_in="d_model")
        second: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def features(self, weights: Any, x: Float[Array, "*batch T D"], context: Context, norm: Norm) -> Any:
        places = sinusoidal(jnp.arange(x.shape[-2]), x.shape[-1])
        hidden = (x[..., -1:, :] + places).astype(x.dtype)
        for matrix in (weights.first, weights.second):
            hidden = jax.nn.gelu(linear(standardised(hidden), matrix), approximate=False)
        return super().features(weights, standardised(hidden), context, norm)


def standardised(x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """Root-mean-square norm without a gain, which the matrix after it contains."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)


class Compression(SyntheticTask):
    """Predict every token of a sequence of random symbols, whose last token is a signal, by `LastTokenDecoder`.

    symbols: size of the vocabulary, with the signal as the last.
    """

    targets_in_inputs: ClassVar[bool] = False

    symbols: int = static(16, at_least=3)
    length: int = static(32, at_least=2)

    @property
    def vocabulary(self) -> int:
        return self.symbols

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def chance(self) -> float:
        """The signal's place is known, all others hold one of the symbols."""
        return ((self.length - 1) / (self.symbols - 1) + 1) / self.length

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        yield from super().problems_with(model)
        if not isinstance(model.head, LastTokenDecoder):
            yield f"model.head is {model.head}; expected LastTokenDecoder(), or every token sees its target"

    def example(self, key: Array) -> Batch:
        tokens = jax.random.randint(key, (self.length,), 0, self.symbols - 1).at[-1].set(self.symbols - 1)
        return Batch(inputs=tokens, targets=tokens, weights=jnp.ones(self.length))


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "compression": {"task": Compression(), "model.head": LastTokenDecoder()}
}
