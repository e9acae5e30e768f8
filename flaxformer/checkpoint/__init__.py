"""Checkpoints that are whole or not there: saved beside the training, verified, and read back bit for bit.

    RUN/config.json            the run, as canonical JSON (`write_config`, `config_of`)
    RUN/STEP/state/            the numbers, written by Orbax: one entry per weight and layer, whatever the layout
    RUN/STEP/published.json    what is to be there, with digests; it is written when all is durable and verified
    RUN/STEP.corrupt/          a step that failed its digests: set aside, never read again

Nothing here is ever unpickled or evaluated, and nothing outside the folder is written or removed.
"""

from flaxformer.checkpoint.checkpoints import Checkpoints
from flaxformer.checkpoint.config import config_of, write_config
from flaxformer.checkpoint.errors import SaveFailed
from flaxformer.checkpoint.stopping import Stop, stopping

__all__ = ["Checkpoints", "SaveFailed", "Stop", "config_of", "stopping", "write_config"]
