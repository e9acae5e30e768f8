"""Truncated normal: initial weights of a normal distribution without what is beyond two standard deviations.

    W ~ N(0, 0.02²), drawn again where |W| > 0.04, so that its standard deviation is 0.0176

Family: initialisation
Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
arXiv:1810.04805, the authors' code.
Claim: none; the paper does not compare it.
Cost: none.
Verified: the quantiles of scipy.stats.truncnorm.
"""

from collections.abc import Mapping

from flaxformer import Initial, Normal

BERT = Normal(deviation=0.02 * 0.8796256610342398, distribution="truncated")

VARIANTS: Mapping[str, Mapping[str, object]] = {
    "N(0, 0.02²), truncated": {
        "model.initializer": BERT,
        "model.initial": (Initial(weights=("embedding/tokens",), initializer=BERT),),
    }
}
