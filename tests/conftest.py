"""Shared by all tests: two CPU devices, no silent rank promotion, and shapes checked at run time in the mathematics."""

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")

CHECKED = ["attention", "linear", "losses", "norms", "positions"]
install_import_hook([f"flaxformer.nn.{name}" for name in CHECKED], "beartype.beartype")
