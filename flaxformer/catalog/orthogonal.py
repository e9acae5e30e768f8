"""Orthogonal matrices: each initial matrix keeps all lengths, up to a factor.

    W = gain · Q with Qᵀ Q = 1, or Q Qᵀ = 1 for more columns than rows

Family: initialisation
Source: Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks",
arXiv:1312.6120.
Claim: in deep linear networks, a learning time that does not depend on the depth.
Cost: none in training; before it, a few tens of products per matrix.
Verified: the products Qᵀ Q of maps into heads, out of heads and of experts.
"""

from collections.abc import Mapping

from flaxformer import Orthogonal

VARIANTS: Mapping[str, Mapping[str, object]] = {"orthogonal": {"model.initializer": Orthogonal()}}
