"""Write the texts of `PROGRAMS`, compiled on two devices of a CPU: golden files of the installed version of JAX.

python tests/targets/golden/make_texts.py
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HERE = Path(__file__).parent


def looped(x):
    """Three products with W [5, 5], in which each of two devices holds a part of the sum over 14 rows of x."""
    weights = jnp.eye(5)
    step = lambda total, _: (jnp.tanh(x.T @ (x @ total)), None)  # noqa: E731
    return jax.lax.scan(step, weights, None, length=3)[0]


def printing(x):
    jax.debug.print("{}", x[0, 0])
    return x + 1


PROGRAMS = {"looped": looped, "printing": printing}


def text_of(name):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    x = jax.ShapeDtypeStruct((14, 5), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data")))
    return jax.jit(PROGRAMS[name]).lower(x).compile().as_text().replace(f"{HERE}/", "")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    for name in PROGRAMS:
        folder = HERE / f"jax-{jax.__version__}"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text(text_of(name))
