"""Interpretation of a model: interventions on activations, attribution of logits, importance and roles of heads.

Every function is pure in the weights, the config or run, and the data, so that a study's `measure` can call it;
`name_scalars` turns its result into numbers by name.
"""

from flaxformer.interpret.attribution import direct_logit_attribution, logit_lens
from flaxformer.interpret.heads import (
    attention_maps,
    head_importance,
    head_scores,
    named_maps,
    prefix_matching,
    previous_token,
    repeated_tokens,
)
from flaxformer.interpret.interventions import (
    Replacement,
    Resampling,
    ablate,
    combine,
    means,
    patch,
    resample,
)
from flaxformer.interpret.patching import patching_effect
from flaxformer.interpret.scores import lens_scores, mean_activations, name_scalars, scores

__all__ = [
    "Replacement",
    "Resampling",
    "ablate",
    "attention_maps",
    "combine",
    "direct_logit_attribution",
    "head_importance",
    "head_scores",
    "lens_scores",
    "logit_lens",
    "mean_activations",
    "means",
    "name_scalars",
    "named_maps",
    "patch",
    "patching_effect",
    "prefix_matching",
    "previous_token",
    "repeated_tokens",
    "resample",
    "scores",
]
