"""Run what only a GPU gives, in order of worth, within a number of minutes.

Command: experiments/on_gpu.sh run WHEELS --minutes 9.5 --output OUT, on a machine without a package index; or
    python experiments/gpu/on_gpu.py --minutes 9.5 --output OUT, in an environment that has the package
    --dry-run prints the plan; --quick runs every item in a tiny form on a CPU, in about 5 minutes
Run it in the root of the repository, with the texts in data/ that experiments/training/ names.
Output: in OUT, summary.md, and results-N.zip with the folders of results, at most 16 MiB each and 64 MiB together: no
    weights, no caches; what does not fit is named. `--earlier OUT` continues from them: an item that is done is not
    run again, and a study trains what its rows lack.

An item is interrupted (SIGINT) half a minute before its time is over, so that it saves; a failure of one does not stop
the next. `docs/accelerators.md` has an example.
"""

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from items import ITEMS, RESULTS, Item
from results import STATE, pack, unpack

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Outcome:
    """State of an item: "done", "partly" (interrupted or failed) or "not begun", and why; minutes over all calls."""

    state: str = "not begun"
    reason: str = ""
    minutes: float = 0.0


class Clock:
    """Minutes that are left of a call."""

    def __init__(self, began: float, minutes: float):
        self.end = began + 60 * minutes
        self.began = began

    def left(self) -> float:
        """Return the minutes until the end, less those that summary and archives take."""
        return (self.end - time.time()) / 60 - 0.2

    def used(self) -> float:
        """Return the minutes since the beginning."""
        return (time.time() - self.began) / 60


def begin(work: Item, outcome: Outcome, left: float, folder: Path, quick: bool) -> tuple[float, str]:
    """Return the minutes that an item gets, or 0 and the reason why it is not begun."""
    missing = [name for name in work.needs if not (folder / name).exists()]
    limit, least = (work.quick_minutes, 0.2) if quick else (work.minutes, work.least)
    if outcome.state == "done":
        return 0, outcome.reason
    if missing:
        return 0, f"{missing[0]} is missing"
    if left < least:
        return 0, f"{max(left, 0):.1f} min were left; it needs {least:g} or more"
    return min(limit, left), ""


def words_of(work: Item, quick: bool) -> Iterator[list[str]]:
    """Yield the words of each command of an item."""
    programs = {"flaxformer": [sys.executable, "-m", "flaxformer.cli"], "python": [sys.executable]}
    for command, more in zip(work.commands, work.quick, strict=True):
        program, *words = command.split()
        yield [*programs[program], *words, *(more.split() if quick else ())]


def execute(words: Sequence[str], folder: Path, log: Path, until: float, copies: int) -> tuple[int, bool]:
    """Run copies of a command; return the largest exit code, and whether they were interrupted.

    They are interrupted before `until`, and killed then; also if this process is interrupted, within ten seconds.
    """
    share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / copies:.2f}"} if copies > 1 else {}
    with log.open("a") as output:
        output.write(f"$ {' '.join(words)}\n")
        output.flush()
        started = [
            subprocess.Popen(
                words,
                cwd=folder,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT), **share},
                start_new_session=True,
            )
            for _ in range(copies)
        ]
        try:
            grace = min(30.0, max(0.0, until - time.time()) / 4)
            late = not _wait(started, until - grace)
            if late:
                _signal(started, signal.SIGINT)
                _wait(started, until)
        except KeyboardInterrupt:
            _signal(started, signal.SIGINT)
            _wait(started, time.time() + 10)
            raise
        finally:
            _signal(started, signal.SIGKILL)
            codes = [process.wait() for process in started]
    return max(map(abs, codes)), late


def _wait(processes: Sequence[subprocess.Popen[bytes]], until: float) -> bool:
    """Wait for processes; return True if all ended in time."""
    while any(process.poll() is None for process in processes):
        if time.time() > until:
            return False
        time.sleep(0.1)
    return True


def _signal(processes: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """Send a signal to the processes that run, and to those that they started."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)


def run(work: Item, outcome: Outcome, minutes: float, folder: Path, quick: bool) -> Outcome:
    """Run the commands of an item within some minutes, and return its state."""
    log, began = folder / RESULTS / "logs" / f"{work.name}.txt", time.time()
    log.parent.mkdir(parents=True, exist_ok=True)
    code, late = 0, False
    for words in words_of(work, quick):
        if not code and not late:
            code, late = execute(
                words, folder, log, began + 60 * minutes, min(work.processes, 2) if quick else work.processes
            )
    reason = (
        f"interrupted after {minutes:.1f} min" if late else f"exit code {code}, see logs/{log.name}" if code else ""
    )
    return Outcome("partly" if late or code else "done", reason, outcome.minutes + (time.time() - began) / 60)


def summary(outcomes: dict[str, Outcome], clock: Clock, left_out: Sequence[str], folder: Path) -> str:
    """Return the page on a call: the state of each item, what to run next, and the last lines of each log."""
    rows = [f"| {n} | {o.state} | {o.minutes:.1f} | {o.reason} |" for n, o in outcomes.items()]
    remaining = [work for work in ITEMS if work.name in outcomes and outcomes[work.name].state != "done"]
    lines = ["# On a GPU", "", f"{clock.used():.1f} minutes of this call.", ""]
    lines += ["| item | state | minutes | reason |", "| --- | --- | --- | --- |", *rows, ""]
    if remaining:
        needed = sum(work.minutes for work in remaining)
        lines += [
            f"Next: --earlier THIS --only {' '.join(work.name for work in remaining)} (at most {needed:g} minutes)",
            "",
        ]
    lines += [f"Left out, for want of room: {name}" for name in left_out]
    for name in outcomes:
        log = folder / RESULTS / "logs" / f"{name}.txt"
        if log.exists():
            lines += [
                "",
                f"## {name}",
                "",
                "```text",
                *log.read_text(errors="replace").rstrip().split("\n")[-24:],
                "```",
            ]
    return "\n".join(lines) + "\n"


def check_device() -> None:
    """End with a message if JAX has no accelerator, on which items would take hours."""
    question = "import jax; print(jax.devices()[0].platform, jax.devices())"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=False)
    print(answer.stdout.strip() or answer.stderr.strip()[-800:], flush=True)
    if answer.returncode or answer.stdout.startswith("cpu"):
        raise SystemExit("JAX has no accelerator here; expected one, or --quick")


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(prog="on_gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=9.5, help="of the whole call (default: %(default)s)")
    parser.add_argument("--began", type=float, default=time.time(), help="when the call began, in seconds since 1970")
    parser.add_argument("--output", type=Path, default=RESULTS / "out", help="folder for summary.md and results-N.zip")
    parser.add_argument("--earlier", type=Path, help="output of an earlier call, to continue from")
    parser.add_argument("--only", nargs="+", choices=[work.name for work in ITEMS], metavar="NAME", help="these items")
    parser.add_argument(
        "--quick", action="store_true", help="every item in a tiny form, on a CPU, with stand-ins for data"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and run nothing")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Run the items, and return 0 if none failed."""
    options = arguments(words)
    clock = Clock(options.began, 60 if options.quick else options.minutes)
    works = [work for work in ITEMS if options.only is None or work.name in options.only]
    folder = Path(tempfile.mkdtemp(prefix="on_gpu-")) if options.quick else Path.cwd()
    if options.quick:
        from stand_ins import stand_ins

        stand_ins(folder)
        os.environ["JAX_PLATFORMS"] = "cpu"
    if options.earlier is not None:
        unpack(options.earlier, folder)
    stored = json.loads((folder / STATE).read_text()) if (folder / STATE).exists() else {}
    outcomes = {work.name: Outcome(**stored.get(work.name, {})) for work in works}
    if options.dry_run:
        print_plan(works, outcomes, clock, folder, options.quick)
        return 0
    if not options.quick:
        check_device()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options.output.mkdir(parents=True, exist_ok=True)
    output = options.output.resolve()
    left_out: list[str] = []
    try:
        for work in works:
            minutes, reason = begin(work, outcomes[work.name], clock.left(), folder, options.quick)
            if minutes:
                print(f"{clock.used():5.1f} min: {work.name}, at most {minutes:.1f} min", flush=True)
                # If this process is ended, what the item has saved is all that there is of it.
                outcomes[work.name] = dataclasses.replace(
                    outcomes[work.name], state="partly", reason="ended from outside"
                )
                outcomes[work.name] = run(work, outcomes[work.name], minutes, folder, options.quick)
            else:
                outcomes[work.name] = dataclasses.replace(outcomes[work.name], reason=reason)
            left_out = save(folder, output, {**stored, **{n: dataclasses.asdict(o) for n, o in outcomes.items()}})
    except KeyboardInterrupt:
        left_out = save(folder, output, {**stored, **{n: dataclasses.asdict(o) for n, o in outcomes.items()}})
    page = summary(outcomes, clock, left_out, folder)
    (output / "summary.md").write_text(page)
    print(page.partition("\n## ")[0], flush=True)
    if options.quick:
        shutil.rmtree(folder)
    return int(any(outcome.reason.startswith("exit code") for outcome in outcomes.values()))


def save(folder: Path, output: Path, states: dict[str, object]) -> list[str]:
    """Write the states of the items and the archives; return the names of the files that do not fit."""
    (folder / STATE).parent.mkdir(parents=True, exist_ok=True)
    (folder / STATE).write_text(json.dumps(states, indent=1) + "\n")
    return pack(folder, output, ITEMS)


def print_plan(works: Sequence[Item], outcomes: dict[str, Outcome], clock: Clock, folder: Path, quick: bool) -> None:
    """Print what would be run, with the minutes at which each item would begin if each takes all of its time."""
    left = clock.left()
    for work in works:
        minutes, reason = begin(work, outcomes[work.name], left, folder, quick)
        at = f"{clock.left() - left:5.1f} min: {work.name}"
        state = f"{outcomes[work.name].state}{f', {reason}' if reason else ''}"
        print(f"{at}, at most {minutes:.1f} min" if minutes else f"{at}: {state}")
        for words in words_of(work, quick) if minutes else ():
            print("    " + " ".join(words))
        left -= minutes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
