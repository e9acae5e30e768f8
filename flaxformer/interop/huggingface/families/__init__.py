"""Families of checkpoints, similar ones in a file: a table of tensors, and the conversions of config.json."""
