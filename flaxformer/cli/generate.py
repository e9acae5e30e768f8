"""The command `flaxformer generate DIR`."""

import dataclasses
import inspect
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import jax
import numpy as np
from rich.console import Console

from flaxformer.cli.arguments import Generate
from flaxformer.config import ModelConfig
from flaxformer.core.points import Edit, Edits
from flaxformer.data import lines
from flaxformer.data.tokenizer import Tokenizer, decode_stream
from flaxformer.devices.sharding import Devices, replicated
from flaxformer.jobs.samples import TEMPERATURE
from flaxformer.jobs.translation import ROWS, longest_target, stream_translation, translate
from flaxformer.model import Sampling, Transformer, beam_search, stream
from flaxformer.model.call import PrefixInputs
from flaxformer.report.loaded_model import TOKENIZER, LoadedModel, load, most_tokens
from flaxformer.study.load import load_module
from flaxformer.system.errors import UserError
from flaxformer.system.settings import LARGEST
from flaxformer.system.wording import printable
from flaxformer.tasks.masked import MaskedText
from flaxformer.tasks.pairs import PairTask
from flaxformer.training import Run
from flaxformer.training.memory import check_decoding

EXPECTED = "defines edit, a dict of functions by path, or edit(params, run) that returns one"


def main(arguments: Generate, console: Console) -> int:
    """Print the continuation of the prompt, or the translation."""
    loaded = load(
        arguments.directory,
        arguments.arm or "",
        seed=arguments.trial_seed,
        step=arguments.step,
        trust_code=arguments.trust_code,
    )
    if loaded.run is not None and isinstance(loaded.run.task, PairTask):
        return _translate(arguments, console, loaded, loaded.run.task)
    text = trained_text(loaded)
    if arguments.input is not None:
        raise UserError(f"input is '{arguments.input}' with a run that continues a text; expected --prompt")
    asked = "\n" if arguments.prompt is None else arguments.prompt
    prompt = text.encode(utf8(asked))
    if not prompt.size:
        raise UserError("prompt is empty; expected at least one token to continue")
    if loaded.run is not None and isinstance(loaded.run.task, MaskedText):
        return _fill_in(arguments, console, loaded, asked)
    steps = _number_of_tokens(arguments, loaded.config, prompt.size)
    if arguments.temperature is None and arguments.beams is None:
        arguments = dataclasses.replace(arguments, temperature=TEMPERATURE)
    check_decoding(loaded.params, loaded.config, prompt.size, steps, arguments.beams or 1)
    pieces = _pieces(arguments, loaded, prompt[None].astype(np.int32), steps)
    texts = decode_stream(text.decode, itertools.chain([prompt], pieces))
    next(texts)  # the prompt, which is printed as it was given
    return print_pieces(console, itertools.chain([asked], texts))


def _fill_in(arguments: Generate, console: Console, loaded: LoadedModel, prompt: str) -> int:
    """Print a prompt and the tokens after it, which a model of masked tokens fills in."""
    for name in ("beams", "edit"):
        if (value := getattr(arguments, name)) is not None:
            raise UserError(f"{name} is {value} with a run that fills in masked tokens; expected it for one that reads "
                            "them from left to right")  # fmt: skip
    rule = {name: getattr(arguments, name) for name in ("tokens", "top_k", "top_p", "seed")}
    temperature = TEMPERATURE if arguments.temperature is None else arguments.temperature
    return print_pieces(console, [str(loaded.generate(prompt, temperature=temperature, **rule))])


def _number_of_tokens(arguments: Generate, config: ModelConfig, prompt: int) -> int:
    """The number of tokens that is asked for; by default as many as fit after a prompt of this length, at most 200.

    Raises:
      UserError: a number of tokens that does not fit.
    """
    most, longest = most_tokens(config, prompt), config.max_length
    fits = LARGEST if longest is None else longest + 1 - prompt  # the last new token is not an input
    if 0 < fits < (arguments.tokens or 1):
        raise UserError(
            f"tokens is {arguments.tokens} after a prompt of {prompt}; expected at most {fits}, since the model's "
            f"max_length is {longest}"
        )
    return arguments.tokens or most


def _sampling(arguments: Generate) -> Sampling:
    """Sampling settings of the command line."""
    return Sampling(temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p)


def _edits(arguments: Generate, loaded: LoadedModel) -> Mapping[str, Edit] | None:
    """Edits of the file that the command line names."""
    if arguments.edit is None:
        return None
    if loaded.run is None:
        raise UserError(f"edit is '{arguments.edit}' with a checkpoint of Hugging Face; expected the folder of a run")
    return load_edits(arguments.edit, loaded.params, loaded.run)


def utf8(text: str) -> bytes:
    """Return a text of the command line in UTF-8.

    Raises:
      UserError: it holds bytes that are not UTF-8.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"prompt is {text!r}, which is not UTF-8 at character {error.start}; expected text") from None


def _pieces(arguments: Generate, loaded: LoadedModel, read: np.ndarray, steps: int) -> Iterator[jax.Array]:
    """Tokens that follow those that were read, as they are generated; arguments are checked at once."""
    params, model, edit = loaded.params, loaded.config, _edits(arguments, loaded)
    if arguments.beams is not None:
        return iter([beam_search(params, model, read, steps=steps, beams=arguments.beams, edit=edit).tokens[0, 0]])
    key, sampling = jax.random.key(arguments.seed), _sampling(arguments)
    pieces = stream(params, model, read, steps=steps, sampling=sampling, key=key, edit=edit)
    return (piece.tokens[0] for piece in pieces)


def _translate(arguments: Generate, console: Console, loaded: LoadedModel, task: PairTask) -> int:
    """Print one line of output per line of input; or continue the prompt, token by token."""
    if (arguments.prompt is None) == (arguments.input is None):
        raise UserError("a run that translates asks for --prompt TEXT or --input FILE; expected one of them")
    name = "the prompt" if arguments.input is None else arguments.input
    lines = [utf8(arguments.prompt or "")] if arguments.input is None else read_lines(arguments.input)
    params, model = loaded.params, loaded.config
    steps, sampling, key = arguments.tokens, _sampling(arguments), jax.random.key(arguments.seed)
    prompts = task.prompts([np.zeros(1, np.int32)])
    encoder_inputs = cast(PrefixInputs, {name: prompts[name] for name in ("source", "source_valid") if name in prompts})
    batch_size = (arguments.beams or 1) * (1 if arguments.input is None else min(ROWS, len(lines)))
    check_decoding(params, model, 1, steps or longest_target(task), batch_size, encoder_inputs)
    edit = _edits(arguments, loaded)
    if arguments.input is None and arguments.beams is None:
        pieces = stream_translation(params, model, task, lines[0], steps=steps, sampling=sampling, key=key, edit=edit)
        return print_pieces(console, pieces)
    # Each device has a copy of the weights, which it reads for every token: it should have at least 4 lines.
    mesh = Devices(data=math.gcd(ROWS // 4, jax.device_count())).mesh()
    with jax.set_mesh(mesh):
        params = jax.device_put(params, replicated(mesh))
        for line in translate(
            params,
            model,
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


def trained_text(loaded: LoadedModel) -> Tokenizer:
    """The tokenizer of the text that a model learned to continue.

    Raises:
      UserError: its task is not text, or its folder has no tokenizer.
    """
    if loaded.tokenizer is not None:
        return loaded.tokenizer
    if loaded.run is None:
        raise UserError(f"{loaded.source.folder} has no {TOKENIZER}; expected one beside the weights")
    raise UserError(
        f"{loaded.source.folder} was trained on {type(loaded.run.task).__name__}; expected a task of text to continue"
    )


def load_edits(file: Path, params: Transformer, run: Run) -> Mapping[str, Edit]:
    """Return the edits that a file declares as `edit`, for `model.generate`; run only files that you trust.

    Args:
      file: Python file.
      params, run: weights and run, which the function of a file gets.

    Raises:
      UserError: the file declares none, or something else.
    """
    declared = getattr(load_module(file, EXPECTED), "edit", None)
    if inspect.isfunction(declared):
        try:
            inspect.signature(declared).bind(params, run)
        except TypeError:
            signature = f"edit{inspect.signature(declared)}"
            raise UserError(f"'{file}' has {signature}; expected a file that {EXPECTED}") from None
        declared = declared(params, run)
    if not isinstance(declared, Mapping) or not declared:
        raise UserError(f"'{file}' has edit = {printable(repr(declared)):.60}; expected a file that {EXPECTED}")
    Edits.of(declared)
    return declared
