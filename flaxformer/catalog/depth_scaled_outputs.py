"""Depth-scaled outputs: the last matrix of each residual branch begins smaller by the root of the number of branches.

    W_O ~ N(0, 0.02² / (2 L)), and N(0, 0.02²) for all other matrices and the embeddings, with L layers of two branches

Family: initialisation
Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
Claim: it accounts for the accumulation on the residual path with the depth of the model.
Cost: none.
Verified: the standard deviation of each kind of weight.
"""

from collections.abc import Mapping

from flaxformer import DEPTH_SCALED_OUTPUTS, Normal

VARIANTS: Mapping[str, Mapping[str, object]] = {
    "1/√(2 L)": {
        "model.initializer": Normal(deviation=0.02),
        "model.inputs.std": 0.02,
        "model.initial": (DEPTH_SCALED_OUTPUTS,),
    }
}
