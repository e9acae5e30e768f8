"""The mathematics: pure functions on arrays, knowing no config.

One letter legend, used in every shape:

| letter | axis                | letter | axis                     |
|--------|---------------------|--------|--------------------------|
| B      | batch               | D      | model width, d_model     |
| T      | query length        | H      | head width, d_head       |
| S      | key length          | F      | feed-forward width, d_ff |
| N      | query heads         | V      | vocabulary               |
| K      | key-value heads     | L      | layers                   |
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
