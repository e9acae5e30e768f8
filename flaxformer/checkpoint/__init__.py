"""Atomic checkpoints: saved in the background, verified by digests, and restored bit for bit.

    RUN/config.json            the run, as canonical JSON (`write_config`, `read_config`)
    RUN/STEP/state/            arrays, written by Orbax: one entry per weight and layer, independent of the layout
    RUN/STEP/published.json    the arrays' names and digests; written last, when all files are durable and verified
    RUN/.saving-TOKEN/         messages of several processes that write a step together, until they have
    RUN/STEP.corrupt/          a step that did not match its digests, renamed and never read again

No file is unpickled or evaluated, and nothing outside the folder is written or removed.
"""

from flaxformer.checkpoint.checkpoints import Checkpoints
from flaxformer.checkpoint.config import read_config, write_config
from flaxformer.checkpoint.errors import SaveError
from flaxformer.checkpoint.stopping import Stop, stop_on_signals

__all__ = ["Checkpoints", "SaveError", "Stop", "read_config", "stop_on_signals", "write_config"]
