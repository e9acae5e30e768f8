"""Hybrid layers: most layers have a mixer with a state of constant size, and some have attention.

    three layers of Kimi delta attention or of the gated delta rule, then one of attention without positions, repeated;
    or layers of Mamba and of attention to a window in turn (Samba)

Family: token mixers
Source: Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture", arXiv:2510.26692; Ren et al.
2024, "Samba: Simple Hybrid State Space Models for Efficient Unlimited Context Language Modeling", arXiv:2406.07522.
Claim: with 3 : 1 layers, better results than full attention at 48B weights of which 3B are active, with up to 75% less
cache of keys and values.
Cost: that of the mixers; the cache of keys and values has a share of the layers alone, or a window.
Verified: its blocks one after another, each a model of one layer.
"""

from collections.abc import Mapping

from flaxformer import Block, NoPositions
from flaxformer.catalog import GatedDeltaRule, KimiDeltaAttention, Mamba

VARIANTS: Mapping[str, Mapping[str, object]] = {
    "3 KDA, 1 attention": {
        "model.pattern": (Block(attention=KimiDeltaAttention),) * 3 + (Block(positions=NoPositions()),)
    },
    "3 gated delta, 1 attention": {
        "model.pattern": (Block(attention=GatedDeltaRule),) * 3 + (Block(positions=NoPositions()),)
    },
    "1 Mamba, 1 window": {"model.attention.window": 2048, "model.pattern": (Block(attention=Mamba), Block())},
}
