"""Compiled runs that are kept in memory, for commands that train runs of few structures again and again."""

import collections
import contextlib
import threading
from collections.abc import Hashable, Iterator

import jax

from flaxformer.model.layout import Layout
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup
from flaxformer.training.run import Run
from flaxformer.training.run_functions import DiagnoseNext, MeasureParams

_lock = threading.Lock()
_kept: "collections.OrderedDict[Hashable, CompiledRun]" = collections.OrderedDict()
_most = 0


@contextlib.contextmanager
def keeping_compiled_runs(most: int = 4) -> Iterator[None]:
    """Keep the compiled runs that were used last, with their data, inside the `with` block.

    Args:
      most: number of compiled runs to keep.
    """
    global _most
    before, _most = _most, most
    try:
        yield
    finally:
        _most = before
        _remove_oldest()


def compiled_run(
    run: Run,
    device_group: DeviceGroup,
    layout: Layout,
    *,
    stack_size: int,
    measure: MeasureParams | None,
    diagnose: DiagnoseNext | None,
) -> CompiledRun:
    """Return the compiled run of a structure: a kept one, or a new one; see `CompiledRun` for the arguments."""
    program = run.without_init
    key = jax.tree.structure(program), run.init is None, device_group, layout, stack_size, measure, diagnose
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    compiled = CompiledRun(program, device_group, layout, stack_size=stack_size, measure=measure, diagnose=diagnose)
    with _lock:
        if _most:
            _kept[key] = compiled
    _remove_oldest()
    return compiled


def _remove_oldest() -> None:
    with _lock:
        while len(_kept) > _most:
            _kept.popitem(last=False)
