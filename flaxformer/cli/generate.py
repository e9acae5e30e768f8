"""The command `flaxformer generate DIR`."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import jax
import numpy as np
from rich.console import Console

from flaxformer.checkpoint import Checkpoints
from flaxformer.checkpoint.weights import read_weights
from flaxformer.cli.arguments import Generate
from flaxformer.core.points import Edit
from flaxformer.data import lines
from flaxformer.data.tokenizer import Tokenizer, decode_stream
from flaxformer.devices.sharding import Devices, replicated
from flaxformer.jobs.decoding_memory import check_decoding
from flaxformer.jobs.edits import load_edits
from flaxformer.jobs.samples import TEMPERATURE, text_of
from flaxformer.jobs.translation import ROWS, longest_target, stream_translation, translate
from flaxformer.model import Sampling, beam_search, stream
from flaxformer.model.call import PrefixInputs
from flaxformer.model.weights import Transformer
from flaxformer.store.store import Store
from flaxformer.study.copied_code import load_run
from flaxformer.study.kept_trials import is_study, kept_weights_folder, parse_labels
from flaxformer.study.seeds import LAST
from flaxformer.system.errors import UserError
from flaxformer.system.wording import printable
from flaxformer.tasks.pairs import PairTask
from flaxformer.training import Run

DEFAULT_TOKENS = 200
MOST_BEAMS, MOST_TOKENS = 4096, 2**31 - 1


def main(arguments: Generate, console: Console) -> int:
    """Print the continuation of the prompt, or the translation."""
    _check_numbers(arguments)
    if arguments.beams is not None and (arguments.temperature, arguments.top_k, arguments.top_p) != (None, None, None):
        raise UserError(f"beams is {arguments.beams} with temperature, top_k or top_p; expected one way to decode")
    arguments = of_trial(arguments)
    run = load_run(arguments.directory, arguments.trust_code)
    if isinstance(run.task, PairTask):
        return _translate(arguments, console, run, run.task)
    text = trained_text(arguments.directory, run)
    if arguments.input is not None:
        raise UserError(f"input is '{arguments.input}' with a run that continues a text; expected --prompt")
    asked = "\n" if arguments.prompt is None else arguments.prompt
    prompt = text.encode(utf8(asked))
    if not prompt.size:
        raise UserError("prompt is empty; expected at least one token to continue")
    arguments = for_text(arguments, run, prompt.size)
    params = read_weights(arguments.directory, run, arguments.step)
    check_decoding(params, run.model, prompt.size, arguments.tokens or 1, arguments.beams or 1)
    pieces = _pieces(arguments, params, run, prompt[None].astype(np.int32))
    texts = decode_stream(text.decode, itertools.chain([prompt], pieces))
    next(texts)  # the prompt, which is printed as it was given
    return print_pieces(console, itertools.chain([asked], texts))


def for_text(arguments: Generate, run: Run, prompt: int) -> Generate:
    """The arguments with the defaults of a continuation: the tokens that fit, at most 200, sampled as in training.

    Raises:
      UserError: a number of tokens that does not fit after a prompt of this number of tokens.
    """
    longest = run.model.max_length
    fits = DEFAULT_TOKENS if longest is None else max(1, longest + 1 - prompt)  # the last new token is not an input
    if longest is not None and prompt <= longest and (arguments.tokens or 1) > fits:
        raise UserError(
            f"tokens is {arguments.tokens} after a prompt of {prompt}; expected at most {fits}, since the model's "
            f"max_length is {longest}"
        )
    tokens = min(DEFAULT_TOKENS, fits) if arguments.tokens is None else arguments.tokens
    temperature = TEMPERATURE if arguments.temperature is None and arguments.beams is None else arguments.temperature
    return dataclasses.replace(arguments, tokens=tokens, temperature=temperature)


def of_trial(arguments: Generate) -> Generate:
    """The arguments with the folder of the kept weights of one trial, if the folder is a study's.

    Raises:
      UserError: the study has no such trial, its weights were not kept, or a trial of a job is asked for.
    """
    labels = {} if arguments.arm is None else parse_labels(arguments.arm)
    if not is_study(arguments.directory):
        for name, value in (("arm", arguments.arm), ("trial_seed", arguments.trial_seed)):
            if value is not None:
                raise UserError(f"{name} is {value!r} and {arguments.directory} holds no study; expected none")
        return arguments
    folder = kept_weights_folder(Store(arguments.directory), labels, arguments.trial_seed)
    step = Checkpoints(folder).steps()[-1] if arguments.step is None else arguments.step
    return dataclasses.replace(arguments, directory=folder, step=step)


def _check_numbers(arguments: Generate) -> None:
    """Check the numbers that no other part checks before it computes.

    Raises:
      UserError: a number out of range.
    """
    if not 0 <= arguments.seed <= LAST:
        raise UserError(f"seed is {arguments.seed}; expected a whole number from 0 to {LAST:,}")
    for name, most in (("beams", MOST_BEAMS), ("tokens", MOST_TOKENS)):
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= most:
            raise UserError(f"{name} is {value}; expected a number from 1 to {most:,}")


def _sampling(arguments: Generate) -> Sampling:
    """Sampling settings of the command line."""
    return Sampling(temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p)


def _edits(arguments: Generate, params: Transformer, run: Run) -> Mapping[str, Edit] | None:
    """Edits of the file that the command line names."""
    return None if arguments.edit is None else load_edits(arguments.edit, params, run)


def utf8(text: str) -> bytes:
    """Return a text of the command line in UTF-8.

    Raises:
      UserError: it holds bytes that are not UTF-8.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"prompt is {text!r}, which is not UTF-8 at character {error.start}; expected text") from None


def _pieces(arguments: Generate, params: Transformer, run: Run, read: np.ndarray) -> Iterator[jax.Array]:
    """Tokens that follow those that were read, as they are generated; arguments are checked at once."""
    steps = arguments.tokens or 1
    edit = _edits(arguments, params, run)
    if arguments.beams is not None:
        return iter([beam_search(params, run.model, read, steps=steps, beams=arguments.beams, edit=edit).tokens[0, 0]])
    key, sampling = jax.random.key(arguments.seed), _sampling(arguments)
    pieces = stream(params, run.model, read, steps=steps, sampling=sampling, key=key, edit=edit)
    return (piece.tokens[0] for piece in pieces)


def _translate(arguments: Generate, console: Console, run: Run, task: PairTask) -> int:
    """Print one line of output per line of input; or continue the prompt, token by token."""
    if (arguments.prompt is None) == (arguments.input is None):
        raise UserError("a run that translates asks for --prompt TEXT or --input FILE; expected one of them")
    name = "the prompt" if arguments.input is None else arguments.input
    lines = [utf8(arguments.prompt or "")] if arguments.input is None else read_lines(arguments.input)
    params = read_weights(arguments.directory, run, arguments.step)
    steps, sampling, key = arguments.tokens, _sampling(arguments), jax.random.key(arguments.seed)
    prompts = task.prompts([np.zeros(1, np.int32)])
    encoder_inputs = cast(PrefixInputs, {name: prompts[name] for name in ("source", "source_valid") if name in prompts})
    batch_size = (arguments.beams or 1) * (1 if arguments.input is None else min(ROWS, len(lines)))
    check_decoding(params, run.model, 1, steps or longest_target(task), batch_size, encoder_inputs)
    edit = _edits(arguments, params, run)
    if arguments.input is None and arguments.beams is None:
        pieces = stream_translation(
            params, run.model, task, lines[0], steps=steps, sampling=sampling, key=key, edit=edit
        )
        return print_pieces(console, pieces)
    # Each device has a copy of the weights, which it reads for every token: it should have at least 4 lines.
    mesh = Devices(data=math.gcd(ROWS // 4, jax.device_count())).mesh()
    with jax.set_mesh(mesh):
        params = jax.device_put(params, replicated(mesh))
        for line in translate(
            params,
            run.model,
            task,
            lines,
            beams=arguments.beams,
            name=name,
            steps=steps,
            sampling=sampling,
            key=key,
            edit=edit,
        ):
            print(printable(line) if console.is_terminal else line, file=console.file, flush=True)
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
        return [line.strip() for line in sys.stdin.buffer]
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(f"input is '{file}', which is not a file; expected text with one sentence per line")
    return list(lines.read_lines(path))


def trained_text(directory: Path, run: Run) -> Tokenizer:
    """The tokenizer of the text that a run learned to continue.

    Raises:
      UserError: its task is not text.
    """
    text = text_of(run.task)
    if text is None:
        raise UserError(f"{directory} was trained on {type(run.task).__name__}; expected a task of text to continue")
    return text
