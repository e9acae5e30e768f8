"""Set-up of a process before JAX starts."""

from flaxformer.system.startup import cuda
from flaxformer.system.startup.compilation_cache import keep_compiled_programs
from flaxformer.system.startup.cpu_devices import one_cpu_device_per_core


def set_up(keep_programs: bool) -> None:
    """Prepare a process for the command line: NVIDIA's libraries, one device per CPU core, and the compilation cache.

    Args:
      keep_programs: keep compiled programs between processes.
    """
    if keep_programs:
        keep_compiled_programs()
    cuda.preload()
    one_cpu_device_per_core()
