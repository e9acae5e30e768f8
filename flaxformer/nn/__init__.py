"""The mathematics: pure functions on arrays, which know no config.

Axis names, in every array annotation of the package; `*name` is any number of axes, `#name` may be 1 and broadcasts.
In the papers' symbols, Q is [T, d_k], K is [S, d_k], V is [S, d_v] and A is [T, S], for each head.

| axis | meaning |
| --- | --- |
| B, batch, rows | sequences of a batch; several leading axes; leading axes flattened into one |
| T, S | queries, or tokens of the sequence that is computed; keys, or tokens of the sequence that is read |
| T_plus_1, length | tokens with the one that follows the last; tokens of a window or of one side |
| N, K, G | query heads; key-value heads; query heads that share a key-value head |
| heads, key_value_heads | the same numbers of heads, in declarations of weights |
| D, d_model | model width: the numbers of each token in the residual stream |
| H, d_head, d_k | width of a head; of its queries and keys |
| d_v, d_value | width of a head's values |
| d, half | one of these widths; half of it |
| d_ff, hidden | feed-forward width |
| d_embedding, d_input, d_source | width of embeddings; of input vectors; of the encoder's tokens |
| d_norm, d_transform | width of what a norm reads; of a head's transform |
| gates, d_hidden, d_state | gates of a recurrent cell; width of its result; width of its state |
| V, vocabulary, outputs, D_out | token ids; outputs of a head; width of a module's result |
| L | layers; absent where layers differ |
| max_length, pattern | positions of a table; positions of fixed attention |
| buckets, token_types | buckets of distances; kinds of token |
| capacity, steps, beams | tokens that a decoding state has room for; new tokens or training steps; hypotheses |
| height, width, channels | of an image |
| train_tokens, validation_tokens | tokens of a text's two sides |
| documents_and_end | first token of each document, and the end |
| size, count, parts, n | number of entries of a list, given by an argument of that name |
| shape | any axes |
"""

from flaxformer.nn.attention import attend, dot_product_attention
from flaxformer.nn.losses import cross_entropy
from flaxformer.nn.masks import Causal, Explicit, Mask, Padding, Segments, Window
from flaxformer.nn.norms import layer_norm, rms_norm
from flaxformer.nn.positions import sinusoidal

__all__ = [
    "Causal",
    "Explicit",
    "Mask",
    "Padding",
    "Segments",
    "Window",
    "attend",
    "cross_entropy",
    "dot_product_attention",
    "layer_norm",
    "rms_norm",
    "sinusoidal",
]
