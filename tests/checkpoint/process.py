"""One of several processes that save or restore a sharded state, as test_several_processes.py tells it to.

It prints a line of JSON per step. A fault happens in the last process, while step 4 is written.
"""

import argparse
import contextlib
import json
import os
import signal
import tracemalloc
import weakref
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint  # noqa: F401  # so that its import is not counted
from jax.experimental import multihost_utils
from states import bits

from flaxformer.checkpoint import Checkpoints, checkpoints, messages, steps, storage
from flaxformer.checkpoint.host_arrays import regions
from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.devices import distributed
from flaxformer.devices.sharding import parse_devices, replicated, shardings_of
from flaxformer.model import init
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError

MODEL = ModelConfig(vocabulary=60, layers=3, d_model=384, attention=Attention(heads=4), feed_forward=Dense(d_ff=960))


def draw_state(step, layout):
    """A state that is a function of the step, on the host: weights, moments, and numbers."""
    draw = np.random.default_rng(step)
    shapes = jax.eval_shape(lambda: init(jax.random.key(0), MODEL))
    trees = [jax.tree.map(lambda x: draw.normal(size=x.shape).astype(x.dtype), shapes) for _ in range(2)]
    params, moments = (jax.tree.map(np.asarray, with_layout(tree, layout)) for tree in trees)
    moments = jax.tree.map(lambda x: x.astype(jnp.bfloat16), moments)
    return {"params": params, "moments": moments, "step": np.int32(step), "nothing": np.zeros((0, 4), np.float32)}


def distribute(state, mesh):
    """The state over the devices of all processes, with a random key and an array of the host."""

    def put(leaf, sharding):
        return jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__)

    shardings = {name: shardings_of(state[name], mesh) for name in ("params", "moments")}
    shardings |= {name: replicated(mesh) for name in ("step", "nothing")}
    words = np.asarray(jax.random.key_data(jax.random.key(int(state["step"]))))
    key = jax.random.wrap_key_data(put(words, replicated(mesh)))
    return jax.tree.map(put, state, shardings) | {"key": key, "host": np.arange(5) + int(state["step"])}


def gathered_bits(state):
    """The bits of a state that is distributed over processes."""

    def gather(leaf):
        leaf = jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        is_local = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
        return np.asarray(leaf if is_local else multihost_utils.process_allgather(leaf, tiled=True))

    return bits(jax.tree.map(gather, state))


def shardings(state):
    return [leaf.sharding for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]


class HostBytes:
    """The most bytes of this process's part of states that were alive in host memory at once.

    Arrays that are copied or read are counted one by one until they are freed; others, as Python counts them.
    """

    def __init__(self):
        self.alive = self.most = self.traced = 0

    def count(self, function):
        def counted(*given):
            arrays = function(*given)
            for array in arrays.values():
                size = sum(part.nbytes for part in regions(array).values())
                self.add(size)
                weakref.finalize(array, self.add, -size)
            return arrays

        return counted

    def add(self, size):
        self.alive += size
        self.most = max(self.most, self.alive)

    @contextlib.contextmanager
    def counting(self):
        self.alive = self.most = 0
        with (
            mock.patch.object(steps, "BATCH", 1),
            mock.patch.object(storage, "read", self.count(storage.read)),
            mock.patch.object(checkpoints, "copy_to_host", self.count(checkpoints.copy_to_host)),
        ):
            tracemalloc.start()
            yield
            self.traced = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()


def failing(fault):
    """`storage.write` that fails in the last process at step 4."""
    write = storage.write

    def write_or_fail(folder, arrays):
        if folder.parent.name == "4" and jax.process_index() == jax.process_count() - 1:
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(28, "No space left on device")
        write(folder, arrays)

    return mock.patch.object(storage, "write", write_or_fail)


def main():
    """Do what the arguments say."""
    parser = argparse.ArgumentParser()
    for name in ("port", "count", "index"):
        parser.add_argument(name, type=int)
    for name in ("folder", "mesh", "layout", "action"):
        parser.add_argument(name)
    parser.add_argument("steps", type=int, nargs="+")
    parser.add_argument("--fault", default="")
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    if given.count > 1:
        distributed.initialize(f"127.0.0.1:{given.port}", given.count, given.index)
    mesh, said, memory = parse_devices(given.mesh).mesh(), [], HostBytes()
    kept = Checkpoints(given.folder, report=said.append)
    messages.PATIENCE = 20
    if given.fault in ("kill", "full"):
        failing(given.fault).start()
    if given.fault == "unseen" and given.index:
        mock.patch.object(messages.Path, "is_dir", return_value=False).start()
    distributed.all_processes().run(lambda: None)
    for step in given.steps:
        wanted = distribute(draw_state(step, given.layout), mesh)
        size, result = sum(leaf.nbytes for leaf in jax.tree.leaves(wanted)), {}
        try:
            if given.action == "save":
                with memory.counting():
                    kept.save(step, wanted, {"validation_loss": 1 / step})
                    kept.wait()
            else:
                like = distribute(draw_state(0, given.layout), mesh)
                with memory.counting():
                    result["step"], restored = kept.restore(like)
                result["equal"] = gathered_bits(restored) == gathered_bits(wanted)
                result["placed"] = shardings(restored) == shardings(like)
            result |= {"alive": memory.most / size, "traced": memory.traced / size}
        except UserError as error:
            result["error"] = str(error)
        print(json.dumps(result | {"said": said}), flush=True)
        if given.fault == "kill" and "error" in result:
            os._exit(3)  # JAX would wait for the process that was killed


main()
