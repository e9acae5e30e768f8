"""The command `flaxformer generate DIR`."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro
from rich.console import Console

from flaxformer.checkpoint import Checkpoints, config_of
from flaxformer.checkpoint.config import source_of
from flaxformer.cli.options import option
from flaxformer.data.tokenizer import Tokenizer, as_said
from flaxformer.jobs.samples import printable, text_of
from flaxformer.model import Sampling, beam_search, stream
from flaxformer.sharding import Devices, replicated
from flaxformer.struct import UserError
from flaxformer.study.load import load_module
from flaxformer.tasks.pairs import PairTask
from flaxformer.tasks.translation import ROWS, translate, translated_piece_by_piece
from flaxformer.training import Run, evaluation_params, start

DEFAULT_TOKENS = 200


@dataclasses.dataclass(frozen=True)
class Generate:
    """Continue a prompt with a trained run, token by token; or translate it, with a run that learned pairs."""

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR", help="the output folder of 'train'")]
    prompt: Annotated[str | None, option("TEXT", "a line's end", "what to continue, or to translate")] = None
    input: Annotated[
        str | None, option("FILE", "none", "translate each of its lines to a line of the output; - is standard input")
    ] = None
    tokens: Annotated[
        int | None, option("N", "200; of a translation, the task's longest", "how many tokens to say at most")
    ] = None
    temperature: Annotated[float | None, option("T", "none: the likeliest token", "divides the logits")] = None
    top_k: Annotated[int | None, option("K", "all", "draw from the K likeliest tokens")] = None
    top_p: Annotated[float | None, option("P", "all", "draw from the likeliest tokens of this much in all")] = None
    beams: Annotated[int | None, option("N", "none", "search with N beams instead; nothing is drawn")] = None
    seed: Annotated[int, option("N", "0", "of what is drawn")] = 0
    step: Annotated[int | None, option("N", "the best, else the newest", "which checkpoint")] = None

    def __call__(self, console: Console) -> int:
        if self.beams is not None and (self.temperature, self.top_k, self.top_p) != (None, None, None):
            raise UserError(f"beams is {self.beams} with temperature, top_k or top_p; expected one way to decode")
        run = run_in(self.directory)
        if isinstance(run.task, PairTask):
            return self._translate(console, run, run.task)
        text = trained_text(self.directory, run)
        if self.input is not None:
            raise UserError(f"input is '{self.input}' with a run that continues a text; expected --prompt")
        asked = "\n" if self.prompt is None else self.prompt
        prompt = text.encode(asked.encode())
        if not prompt.size:
            raise UserError("prompt is empty; expected at least one token to continue")
        params = trained_weights(self.directory, run, self.step)
        pieces = self._pieces(params, run, prompt[None].astype(np.int32))
        said = as_said(text.decode, itertools.chain([prompt], pieces))
        next(said)  # the prompt, which is told as it was given
        return print_pieces(console, itertools.chain([asked], said))

    @property
    def _sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def _pieces(self, params: Any, run: Run, read: np.ndarray) -> Any:
        steps = DEFAULT_TOKENS if self.tokens is None else self.tokens
        if self.beams is not None:
            yield beam_search(params, run.model, read, steps=steps, beams=self.beams).tokens[0, 0]
            return
        key = jax.random.key(self.seed)
        for piece in stream(params, run.model, read, steps=steps, sampling=self._sampling, key=key):
            yield piece.tokens[0]

    def _translate(self, console: Console, run: Run, task: PairTask) -> int:
        """Print one line of output per line of input; or continue the prompt, token by token."""
        if (self.prompt is None) == (self.input is None):
            raise UserError("a run that translates asks for --prompt TEXT or --input FILE; expected one of them")
        if self.tokens is not None and self.tokens < 1:
            raise UserError(f"tokens is {self.tokens}; expected at least 1")
        name = "the prompt" if self.input is None else self.input
        lines = [(self.prompt or "").encode()] if self.input is None else read_lines(self.input)
        params = trained_weights(self.directory, run, self.step)
        how: dict[str, Any] = {"steps": self.tokens, "sampling": self._sampling, "key": jax.random.key(self.seed)}
        if self.input is None and self.beams is None:
            return print_pieces(console, translated_piece_by_piece(params, run.model, task, lines[0], **how))
        # A device has a copy of the weights, and reads them for each token: they are to serve a few lines at least.
        mesh = Devices(data=math.gcd(ROWS // 4, jax.device_count())).mesh()
        with jax.set_mesh(mesh):
            params = jax.device_put(params, replicated(mesh))
            for line in translate(params, run.model, task, lines, beams=self.beams, name=name, **how):
                print(line, file=console.file, flush=True)
        return 0


def run_in(directory: Path) -> Run:
    """The run of a folder; one with classes of the user's own needs the folder's copy of their file, which is executed.

    Raises:
      UserError: the folder holds no run, or one with a class that neither the package nor that file defines.
    """
    try:
        return config_of(directory)
    except UserError:
        source = source_of(directory)
        if source is None or not source.is_file():
            raise
        load_module(source, "defines the classes of the run")
        return config_of(directory)


def print_pieces(console: Console, texts: Iterable[str]) -> int:
    """Texts one after another on a line, each at once; as they are, but for what would command a terminal."""
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
        raise UserError(f"input is '{file}', which is not a file; expected text, a sentence a line")
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


def trained_weights(directory: Path, run: Run, step: int | None) -> Any:
    """The weights to use of a checkpoint: those of the best one, or of the newest where none is known to be best."""
    checkpoints = Checkpoints(directory)
    like = jax.eval_shape(start, run)
    _, state = checkpoints.restore(like, step if step is not None else checkpoints.best())
    return evaluation_params(state, run)
