"""Families of checkpoints, one file each: a table of tensors, and the conversions of the attributes of config.json."""
