"""Pure functions on arrays: attention, masks, norms, positions, losses and recurrent cells.

Axis names of every array annotation in the package; `*name` is any number of axes, `#name` may be 1 and broadcasts.
In the symbols of the papers, per head: Q is [T, d_k], K is [S, d_k], V is [S, d_v], and A is [T, S].

| axis | meaning |
| --- | --- |
| B, batch, rows | sequences of a batch; any leading axes; leading axes flattened into one |
| T, S | queries, or tokens of the computed sequence; keys, or tokens of the sequence that is read |
| T_plus_1, length | T tokens and the one after the last; tokens of a window, or of a source or target text |
| N, K, G | query heads; key-value heads; query heads per key-value head |
| heads, key_value_heads | N and K in declarations of weights |
| D, d_model | model width: entries per token in the residual stream |
| H, d_head, d_k | width of a head; of its queries and keys |
| d_v, d_value | width of a head's values |
| d, half | one of these widths; half of it |
| d_ff, hidden | feed-forward width |
| experts, active | networks of a mixture of experts; those of one token |
| stacked, n_in, n_out | axes along which matrices are stacked; inputs and outputs of a weight as a matrix |
| d_embedding, d_input, d_source | width of embeddings; of input vectors; of the encoder's output |
| d_norm, d_transform | width of a norm's input; of the transform before a head |
| gates, d_hidden, d_state | gates of a recurrent cell; width of its output; width of its state |
| V, vocabulary, outputs, D_out | token ids; outputs of a head; width of a module's output |
| L | layers; absent where layers differ |
| max_length, pattern | rows of a position table; positions of frozen attention |
| buckets, token_types | buckets of distances; types of token |
| capacity, steps, beams | tokens that a decoding state can hold; new tokens or training steps; hypotheses |
| height, width, channels | size of an image; width also of a kernel over tokens |
| train_tokens, validation_tokens | tokens of the training and of the validation text |
| questions, choices | questions of an evaluation; possible answers of each |
| documents_and_end | first token of each document, and the end of the last |
| chunk | tokens that are computed together |
| size, count, parts, n | length of a list, given by an argument of that name |
| shape | any axes |
"""

from flaxformer.nn.attention import attend
from flaxformer.nn.dot_product import dot_product_attention
from flaxformer.nn.experts import mix_experts
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
    "mix_experts",
    "rms_norm",
    "sinusoidal",
]
