"""Search for the benchmarks of a folder, and changes to one from the command line."""

import dataclasses
import traceback
from collections.abc import Sequence
from pathlib import Path

from flaxformer.bench.declare import Benchmark, OptionValues, Way
from flaxformer.bench.read import read
from flaxformer.bench.suite import Suite
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.python_files import find_experiment

LARGEST = 1_000_000_000
"""Largest number that an option of a benchmark accepts."""


def find(folder: Path) -> dict[str, Path]:
    """Return the files of a folder that define `benchmark = Benchmark(...)`, by name.

    Raises:
      UserError: the folder has none.
    """
    files = {
        file.stem: file for file in sorted(find_experiment(folder).glob("*.py")) if "\nbenchmark = " in file.read_text()
    }
    if not files:
        raise UserError(f"'{folder}' holds no benchmarks; expected a folder of files that define `benchmark`")
    return files


def load(folder: Path, name: str) -> tuple[Benchmark | Suite, Path]:
    """Return the benchmark or the suite of a name, and its file.

    Raises:
      UserError: no benchmark has this name, or its file raises an error; the message has the line.
    """
    files = find(folder)
    if name not in files:
        raise UserError(f"no benchmark is called '{name}'{did_you_mean(name, list(files))}")
    file = files[name]
    try:
        return read(file), file
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        at = [frame.lineno for frame in frames if Path(frame.filename) == file.resolve()]
        raise UserError(f"{file}, line {at[-1] if at else '?'}: {type(error).__name__}: {error}") from error


def with_options(benchmark: Benchmark, words: Sequence[str], quick: bool) -> Benchmark:
    """Return the benchmark with options from the command line, such as size=S,M.

    They take precedence over the values of `quick`, and those over the values of the file.

    Raises:
      UserError: the benchmark has no such option, or a value has another type than those of the file.
    """
    options = dict(benchmark.options) | (dict(benchmark.quick) if quick else {})
    for word in words:
        name, _, text = word.partition("=")
        if name not in options:
            raise UserError(f"{benchmark.name} has no option '{name}'{did_you_mean(name, list(options))}")
        kind = type(benchmark.options[name][0])
        options[name] = tuple(_as(kind, name, part, benchmark.choices.get(name, ())) for part in text.split(","))
    return dataclasses.replace(benchmark, options=options)


def _as(kind: type, name: str, text: str, choices: Sequence[str]) -> object:
    if kind is str:
        if choices and text not in choices:
            raise UserError(f"{name} is '{text}'{did_you_mean(text, choices)}")
        return text
    try:
        value = kind(text)
    except ValueError:
        raise UserError(f"{name} is '{text}'; expected {kind.__name__}, or several separated by commas") from None
    if not 0 < value <= LARGEST:
        raise UserError(f"{name} is {text}; expected a number above 0 and at most {LARGEST:,}")
    return value


def choose_ways(benchmark: Benchmark, only: Sequence[str], options: OptionValues) -> tuple[list[Way], list[str]]:
    """Return the ways to measure, and a message for each that is left out because something is missing.

    Raises:
      UserError: `only` has a name that no way of this benchmark has.
    """
    names = [way.name for way in benchmark.ways]
    for name in only:
        if name not in names:
            raise UserError(f"{benchmark.name} has no way '{name}'{did_you_mean(name, names)}")
    ways = [way for way in benchmark.ways if not only or way.name in only]
    left_out = {way.name: why for way in ways if (why := way.missing(options))}
    return [way for way in ways if way.name not in left_out], list(left_out.values())
