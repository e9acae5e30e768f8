"""The command `flaxformer generate DIR`."""

import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from flaxformer.checkpoint.weights import read_weights
from flaxformer.cli.arguments import Generate
from flaxformer.data.tokenizer import Tokenizer, decode_stream
from flaxformer.jobs.samples import text_of
from flaxformer.jobs.translation import ROWS, stream_translation, translate
from flaxformer.model import Sampling, beam_search, stream
from flaxformer.model.weights import Transformer
from flaxformer.sharding import Devices, replicated
from flaxformer.struct import UserError
from flaxformer.study.load import load_run
from flaxformer.tasks.pairs import PairTask
from flaxformer.training import Run
from flaxformer.wording import printable

DEFAULT_TOKENS = 200


def main(arguments: Generate, console: Console) -> int:
    """Print the continuation of the prompt, or the translation."""
    if arguments.beams is not None and (arguments.temperature, arguments.top_k, arguments.top_p) != (None, None, None):
        raise UserError(f"beams is {arguments.beams} with temperature, top_k or top_p; expected one way to decode")
    run = load_run(arguments.directory)
    if isinstance(run.task, PairTask):
        return _translate(arguments, console, run, run.task)
    text = trained_text(arguments.directory, run)
    if arguments.input is not None:
        raise UserError(f"input is '{arguments.input}' with a run that continues a text; expected --prompt")
    asked = "\n" if arguments.prompt is None else arguments.prompt
    prompt = text.encode(asked.encode())
    if not prompt.size:
        raise UserError("prompt is empty; expected at least one token to continue")
    params = read_weights(arguments.directory, run, arguments.step)
    pieces = _pieces(arguments, params, run, prompt[None].astype(np.int32))
    said = decode_stream(text.decode, itertools.chain([prompt], pieces))
    next(said)  # the prompt, which is printed as it was given
    return print_pieces(console, itertools.chain([asked], said))


def _sampling(arguments: Generate) -> Sampling:
    """Sampling settings of the command line."""
    return Sampling(temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p)


def _pieces(arguments: Generate, params: Transformer, run: Run, read: np.ndarray) -> Iterator[jax.Array]:
    """Tokens that follow those that were read, as they are generated."""
    steps = DEFAULT_TOKENS if arguments.tokens is None else arguments.tokens
    if arguments.beams is not None:
        yield beam_search(params, run.model, read, steps=steps, beams=arguments.beams).tokens[0, 0]
        return
    key = jax.random.key(arguments.seed)
    for piece in stream(params, run.model, read, steps=steps, sampling=_sampling(arguments), key=key):
        yield piece.tokens[0]


def _translate(arguments: Generate, console: Console, run: Run, task: PairTask) -> int:
    """Print one line of output per line of input; or continue the prompt, token by token."""
    if (arguments.prompt is None) == (arguments.input is None):
        raise UserError("a run that translates asks for --prompt TEXT or --input FILE; expected one of them")
    if arguments.tokens is not None and arguments.tokens < 1:
        raise UserError(f"tokens is {arguments.tokens}; expected at least 1")
    name = "the prompt" if arguments.input is None else arguments.input
    lines = [(arguments.prompt or "").encode()] if arguments.input is None else read_lines(arguments.input)
    params = read_weights(arguments.directory, run, arguments.step)
    steps, sampling, key = arguments.tokens, _sampling(arguments), jax.random.key(arguments.seed)
    if arguments.input is None and arguments.beams is None:
        pieces = stream_translation(params, run.model, task, lines[0], steps=steps, sampling=sampling, key=key)
        return print_pieces(console, pieces)
    # Each device has a copy of the weights, which it reads for every token: it should have at least 4 lines.
    mesh = Devices(data=math.gcd(ROWS // 4, jax.device_count())).mesh()
    with jax.set_mesh(mesh):
        params = jax.device_put(params, replicated(mesh))
        for line in translate(
            params, run.model, task, lines, beams=arguments.beams, name=name, steps=steps, sampling=sampling, key=key
        ):
            print(line, file=console.file, flush=True)
    return 0


def print_pieces(console: Console, texts: Iterable[str]) -> int:
    """Print texts on one line, each as soon as it is there; control characters are replaced in a terminal."""
    for text in texts:
        print(printable(text) if console.is_terminal else text, end="", file=console.file, flush=True)
    print(file=console.file)
    return 0


def read_lines(file: str) -> list[bytes]:
    """The lines of a file, or of standard input for "-".

    Raises:
      UserError: it is not a file.
    """
    if file == "-":
        return sys.stdin.buffer.read().splitlines()
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(f"input is '{file}', which is not a file; expected text with one sentence per line")
    return path.read_bytes().splitlines()


def trained_text(directory: Path, run: Run) -> Tokenizer:
    """The tokenizer of the text that a run learned to continue.

    Raises:
      UserError: its task is not text.
    """
    text = text_of(run.task)
    if text is None:
        raise UserError(f"{directory} was trained on {type(run.task).__name__}; expected a task of text to continue")
    return text
