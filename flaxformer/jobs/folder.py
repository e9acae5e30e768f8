"""Folder of a training job: checked before anything is computed, held by one process, and declared before it trains."""

import contextlib
import os
from pathlib import Path

from flaxformer.checkpoint import Checkpoints, write_config
from flaxformer.checkpoint.config import NAME as CONFIG
from flaxformer.checkpoint.config import check_config, supersede
from flaxformer.core.canonical import classes_in
from flaxformer.core.paths import replace_at
from flaxformer.jobs.extension import STEPS, Extension, apply, extension_of
from flaxformer.jobs.job import Job
from flaxformer.store.job_log import NAME as LOG_NAME
from flaxformer.store.places import JOB, LIVE, PROFILE, REPORT, SUPERSEDED, TRACKERS, check_kind
from flaxformer.study import initial_weights
from flaxformer.study.tracing import trace
from flaxformer.system.errors import UserError
from flaxformer.system.files import lock_folder
from flaxformer.system.links import DEEPEST, check_not_dangling, check_places, output_folder
from flaxformer.system.user_code import code_digests, copy_sources, path_of_copy, read_records, user_modules
from flaxformer.training import Run
from flaxformer.training.memory import check_memory
from flaxformer.training.micro_batches import check_batch

FILES = [CONFIG, LOG_NAME, LIVE, REPORT]
FOLDERS = {"code": DEEPEST, "reads": DEEPEST, SUPERSEDED: 1, PROFILE: DEEPEST} | TRACKERS
"""Places in a job's folder where no symbolic link may be, beside its steps (`flaxformer.system.links`)."""


def check(run: Run, job: Job) -> Extension | None:
    """Check, before anything is computed, that the folder is this run's or unused, and that the devices exist.

    Returns:
      The extension by which a shorter run of the folder becomes this one; None for any other folder.

    Raises:
      UserError: the folder holds another run, and the message lists the differences; it cannot be written to; or the
        devices are too few, or do not divide the batch; or a file or folder in it is a symbolic link.
    """
    check_places(output_folder(job.output), FILES, FOLDERS)
    check_not_dangling(job.output)
    check_kind(job.output, JOB)
    there = next(path for path in (job.output, *job.output.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        kind = "cannot be written to" if there.is_dir() else "is a file"
        raise UserError(f"output is '{job.output}', and '{there}' {kind}; expected a folder, there or to be made")
    extension = None
    if (job.output / CONFIG).exists() and not job.restart:
        extension = extension_of(job.output, run, job.extend)
        former = run if extension is None else replace_at(run, {STEPS: extension.before})
        check_config(job.output, former, _code(run, job), job.on_code_change, _initial_weights(run, job), job.file)
    else:
        initial_weights.digest(run)
    trace(run, "the run")
    if job.devices is not None:
        job.devices.mesh()
        check_batch(run, job.devices)
    return extension


def _initial_weights(run: Run, job: Job) -> str | None:
    """The digest of the weights that a run starts from; None if it draws all, or is resumed and they are not there."""
    try:
        return initial_weights.digest(run)
    except UserError:
        is_resumed = bool(Checkpoints(job.output).steps()) and not job.restart
        if is_resumed and run.init is not None and not Path(run.init.path).expanduser().exists():
            return None
        raise


def _code(run: Run, job: Job) -> dict[str, str]:
    """Digests of the user code that the run uses."""
    return code_digests(classes_in(run), job.file)


class JobFolder:
    """The folder of a job that is about to train.

    Args:
      run: the run.
      job: its settings.
      held: what is held and recorded until it is closed.
    """

    def __init__(self, run: Run, job: Job, held: contextlib.ExitStack) -> None:
        self._run, self._job, self._held = run, job, held
        self._code, self._modules = _code(run, job), user_modules(job.file)
        self.checkpoints = Checkpoints(job.output, keep_last=job.keep_last, keep_best=job.keep_best)
        self.extensions: list[Extension] = []
        """The extension that `claim` has applied, in the process that did."""

    def claim(self) -> bool:
        """Take the folder for this process, and bring it to the run that is to train; True for a folder without a run.

        Raises:
          UserError: as `check`; another process trains in it; or the run needs more memory than there is.
        """
        check(self._run, self._job)
        check_memory(self._run)
        self._held.enter_context(lock_folder(self._job.output, "training"))
        if self._job.restart:
            supersede(self._job.output)
        elif (extension := extension_of(self._job.output, self._run, self._job.extend)) is not None:
            apply(extension, self._job.output, self._run)
            self.extensions.append(extension)
        return not (self._job.output / CONFIG).exists()

    def declare(self) -> None:
        """Write the run with copies of its code, and record what user code reads from here on."""
        code_copy = path_of_copy(copy_sources(self._job.output / "code", self._modules), self._job.file)
        about = code_copy, _initial_weights(self._run, self._job), self._job.file
        write_config(self._job.output, self._run, self._code, self._job.on_code_change, *about)
        self._held.enter_context(read_records.recording(self._job.output, self._job.file))

    def newest_step(self) -> int | None:
        """Return the step of the checkpoint to resume from; None in a folder that never had one.

        Raises:
          UserError: every checkpoint is damaged, as far as their markers show.
        """
        if steps := self.checkpoints.steps():
            return steps[-1]
        if damaged := self.checkpoints.damaged_steps():
            raise UserError(
                f"{self._job.output} holds damaged checkpoints alone ({', '.join(damaged)}); restore one from a copy, "
                "or train again from the first step with --restart, which moves them and the log to superseded/"
            )
        return None
