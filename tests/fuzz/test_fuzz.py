"""Generated mistakes and hostile folders: one message, and nothing is obeyed, executed or written elsewhere.

FLAXFORMER_FUZZ_SEED=1 pytest -m slow tests/fuzz tries others.
"""

import collections
import os
import shutil

import pytest
from fuzz import folders, invocations
from fuzz.observe import call, faults
from jobs.small import FILE as JOB
from study.tiny import FILE as STUDY
from study.tiny import fill, tiny

from flaxformer.cli import main
from flaxformer.store.store import Store
from flaxformer.system.files import digest_files

SEED = int(os.environ.get("FLAXFORMER_FUZZ_SEED", "0"))
SHORT, LONG = 60, 380
FEW, MANY = 25, 150


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the files that the commands name, and a folder outside it."""
    root = tmp_path_factory.mktemp("made")
    work = root / "work"
    work.mkdir()
    invocations.write_files(work, STUDY, JOB)
    fill(work / "results", tiny(), lambda trial: 1.0 + 0.1 * trial.seed)
    store = Store(work / "results")
    rows = list(store.rows().values())
    with store.locked():
        for path in store.groups.glob("*.parquet"):
            path.unlink()
        for row in rows:
            store.append("all", row)
        store.record_launch(
            {"launched": "2020-01-01T00:00:00", "command": "flaxformer run study.py", "file": "study.py"}
        )
    shutil.copytree(work / "results", work / "sound")
    outside = root / "outside"
    outside.mkdir()
    (outside / "victim").write_text("victim")
    return root


@pytest.fixture(scope="module")
def with_job(made):
    """The same, with the folder of a training run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made / "work")
        assert main(["train", "job.py", "--output", "job", "--samples", "0"]) == 0
    shutil.copytree(made / "work/job", made / "work/sound_job")
    return made


def check(made, tmp_path, numbers, draw):
    """Call what is drawn for each number, in a copy of the folder; fail with all faults."""
    outside, wrong, codes = made / "outside", [], collections.Counter()
    before = digest_files(outside)
    for number in numbers:
        work = tmp_path / str(number)
        shutil.copytree(made / "work", work, symlinks=True, copy_function=_copy)
        invocation, what = draw(number, work)
        try:
            outcome = call(invocation.words, work)
            codes[outcome.code] += 1
            wrong += [f"{number} {invocation.words} {what}: {one}" for one in faults(outcome, invocation.codes, work)]
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            place = _place(error)
            wrong.append(
                f"{number} {invocation.words!r:.300} {what}: {type(error).__name__}: {str(error)[:200]} {place}"
            )
        shutil.rmtree(work)
    assert digest_files(outside) == before
    assert not wrong, f"{len(wrong)} faults, exit codes {dict(codes)}\n" + "\n".join(wrong)
    return codes


def _place(error):
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(frames[-7:]))


def _copy(source, target):
    if not os.path.isfile(source):
        os.mkfifo(target)
    else:
        shutil.copyfile(source, target)


def draw_invocation(number, work):
    return invocations.draw(SEED, number), ""


def study_drawer(outside):
    def draw(number, work):
        hostile = folders.draw_study(SEED, number, work, outside)
        return hostile.invocation, hostile.what

    return draw


def job_drawer(outside):
    def draw(number, work):
        hostile = folders.draw_job(SEED, number, work, outside)
        return hostile.invocation, hostile.what

    return draw


@pytest.mark.long
def test_mistakes_get_one_message(made, tmp_path):
    numbers = [n for n in range(2 * SHORT) if invocations.draw(SEED, n).words[0] != "generate"][:SHORT]
    check(made, tmp_path, numbers, draw_invocation)


def test_hostile_results_are_not_obeyed(made, tmp_path):
    check(made, tmp_path, range(FEW), study_drawer(made / "outside"))


@pytest.mark.slow
def test_many_mistakes_get_one_message(with_job, tmp_path):
    check(with_job, tmp_path, range(SHORT, SHORT + LONG), draw_invocation)


@pytest.mark.slow
def test_many_hostile_folders_are_not_obeyed(with_job, tmp_path):
    check(with_job, tmp_path, range(FEW, FEW + MANY), study_drawer(with_job / "outside"))
    check(with_job, tmp_path, range(MANY // 3), job_drawer(with_job / "outside"))
