"""The command `flaxformer generate DIR`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro
from rich.console import Console

from flaxformer.checkpoint import Checkpoints, config_of
from flaxformer.cli.options import option
from flaxformer.data.tokenizer import Tokenizer, tokenizer
from flaxformer.model import Sampling, beam_search, stream
from flaxformer.struct import UserError
from flaxformer.tasks import TokenFiles
from flaxformer.tasks.text import TextTask
from flaxformer.training import Run, evaluation_params, start


@dataclasses.dataclass(frozen=True)
class Generate:
    """Continue a prompt with a trained run, as it is said."""

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR", help="the output folder of 'train'")]
    prompt: Annotated[str, option("TEXT", "a line's end", "what to continue")] = "\n"
    tokens: Annotated[int, option("N", "200", "how many tokens to say")] = 200
    temperature: Annotated[float | None, option("T", "none: the likeliest token", "divides the logits")] = None
    top_k: Annotated[int | None, option("K", "all", "draw from the K likeliest tokens")] = None
    top_p: Annotated[float | None, option("P", "all", "draw from the likeliest tokens of this much in all")] = None
    beams: Annotated[int | None, option("N", "none", "search with N beams instead; nothing is drawn")] = None
    seed: Annotated[int, option("N", "0", "of what is drawn")] = 0
    step: Annotated[int | None, option("N", "the best, else the newest", "which checkpoint")] = None

    def __call__(self, console: Console) -> int:
        run, text = trained_text(self.directory)
        prompt = text.encode(self.prompt.encode())
        if not prompt.size:
            raise UserError("prompt is empty; expected at least one token to continue")
        params = trained_weights(self.directory, run, self.step)
        read, said = prompt[None].astype(np.int32), list(prompt)
        console.print(self.prompt, end="", markup=False, highlight=False, soft_wrap=True)
        for piece in self._pieces(params, run, read):
            before = text.decode(said)
            said += [int(token) for token in piece]
            console.print(text.decode(said)[len(before) :], end="", markup=False, highlight=False, soft_wrap=True)
        console.print()
        return 0

    def _pieces(self, params: Any, run: Run, read: np.ndarray) -> Any:
        if self.beams is not None:
            if (self.temperature, self.top_k, self.top_p) != (None, None, None):
                raise UserError(f"beams is {self.beams} with temperature, top_k or top_p; expected one way to decode")
            yield beam_search(params, run.model, read, steps=self.tokens, beams=self.beams).tokens[0, 0]
            return
        sampling = Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        key = jax.random.key(self.seed)
        for piece in stream(params, run.model, read, steps=self.tokens, sampling=sampling, key=key):
            yield piece.tokens[0]


def trained_text(directory: Path) -> tuple[Run, Tokenizer]:
    """The run of a folder, and the tokenizer of its text.

    Raises:
      UserError: the folder holds no run, or one of a task that is not text.
    """
    run = config_of(directory)
    match run.task:
        case TextTask():
            return run, tokenizer(run.task.tokenizer)
        case TokenFiles():
            return run, tokenizer(run.task.folder.tokenizer_path)
    raise UserError(f"{directory} was trained on {type(run.task).__name__}; expected a task of text to continue")


def trained_weights(directory: Path, run: Run, step: int | None) -> Any:
    """The weights to use of a checkpoint: those of the best one, or of the newest where none is known to be best."""
    checkpoints = Checkpoints(directory)
    like = jax.eval_shape(start, run)
    _, state = checkpoints.restore(like, step if step is not None else checkpoints.best())
    return evaluation_params(state, run)
