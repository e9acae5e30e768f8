"""Measuring of a probe: every seed that is missing, into the probe's folder."""

import contextlib
import time
from collections.abc import Iterator

from flaxformer.store.declarations import declare
from flaxformer.store.repair import repair
from flaxformer.store.store import Store
from flaxformer.study.probe import Probe, check_quantities
from flaxformer.study.user_functions import numbers_of
from flaxformer.system.digests import JsonObject
from flaxformer.system.user_code import read_records
from flaxformer.system.user_code.changes import OnCodeChange


def run_probe(probe: Probe, store: Store, on_code_change: OnCodeChange = "refuse") -> Iterator[JsonObject]:
    """Measure every seed that is missing; each is on disk before it is yielded.

    Args:
      on_code_change: what to do with measurements whose code has changed since. "retrain" measures again; the old ones
        stay in the folder and are not read.

    Raises:
      UserError: another process holds the folder, a claim is about a number that is not measured, or code changed; or
        `measure` fails, or returns no numbers.
    """
    with store.locked(), contextlib.ExitStack() as held:
        declaration = declare(store, probe.declaration(), on_code_change, probe.file)
        repair(store)
        held.enter_context(read_records.recording(store.root, probe.file))
        done = {row["seed"] for row in store.measurements(declaration)}
        for seed in probe.seeds:
            if seed in done:
                continue
            began = time.perf_counter()
            values = numbers_of(probe.measure, [seed], "measure", f"at seed {seed}")
            check_quantities(probe.claims, values)
            seconds = time.perf_counter() - began
            identity = {"measured_by": declaration.measured_by, "declaration": declaration.declaration}
            row = identity | {"seed": seed, "seconds": seconds, "values": values}
            store.append_measurement(row)
            yield row
