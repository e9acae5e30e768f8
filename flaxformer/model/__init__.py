"""Parameters + config -> functions."""

from flaxformer.model.transformer import Intermediates, Transformer, apply, apply_with_intermediates, init, specs

__all__ = ["Intermediates", "Transformer", "apply", "apply_with_intermediates", "init", "specs"]
