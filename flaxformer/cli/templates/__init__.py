"""Example files that `flaxformer new` copies under a new name."""
