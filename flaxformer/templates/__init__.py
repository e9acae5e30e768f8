"""Files to start from, which `flaxformer new` writes under a name of the user's choice."""
