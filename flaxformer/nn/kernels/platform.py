"""Platform that a traced program will run on, by which kernels are chosen.

It is the compile target's, if the program is compiled for hardware that this machine may not have; else that of the
mesh; else JAX's default backend. The answer is part of the key of JAX's trace cache.
"""

import contextlib
from typing import NamedTuple

import jax


class Platform(NamedTuple):
    """A kind of device.

    Args:
      name: "cpu", "gpu" or "tpu", as `jax.Device.platform` has it.
      is_attached: True if programs can be run on it, and not only compiled for it.
    """

    name: str
    is_attached: bool = True


_TARGET = jax.make_user_context(None)


def compiling_for(name: str) -> contextlib.AbstractContextManager[object]:
    """Return a context in which programs are traced for a platform that this machine need not have."""
    return _TARGET(Platform(name, is_attached=False))


def platform() -> Platform:
    """Return the platform of the program that is being traced."""
    if _TARGET.value is not None:
        return _TARGET.value
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    return Platform(jax.default_backend() if device is None else _name(device.platform))


def _name(found: str) -> str:
    """Return "gpu" for every name of a GPU."""
    return "gpu" if found in ("cuda", "rocm") else found
