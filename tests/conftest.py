"""Shared by all tests: two CPU devices, no silent rank promotion, and shapes checked at run time in the mathematics.

Most tests compile a program to run it once, and so compile it with little optimisation; those of `training` and
`study`, whose laws are about bits, are compiled as a user's programs are.
"""

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")

CHECKED = ["attention", "linear", "losses", "norms", "positions", "recurrent"]
install_import_hook([f"flaxformer.nn.{name}" for name in CHECKED], "beartype.beartype")

OPTIMISED = {"training", "study"}


@pytest.fixture(autouse=True, scope="module")
def compiled_as_it_is_used(request):
    """How much XLA optimises, by the folder of the test."""
    jax.config.update("jax_disable_most_optimizations", request.path.parent.name not in OPTIMISED)
