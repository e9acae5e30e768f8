"""Questions with several answers, read from JSON lines, and texts with labels, which become such questions."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flaxformer.data.compressed import read_bytes
from flaxformer.data.lines import parse_json_object, read_lines, text_field
from flaxformer.system.errors import UserError, did_you_mean
from flaxformer.system.remembered import remembered
from flaxformer.system.remote_data import local_path


class Question(NamedTuple):
    """A context, its possible continuations, and the index of the right one."""

    context: str
    choices: tuple[str, ...]
    answer: int
    line: int
    """Number of its line in the file, from 1."""


@remembered
def read_questions(path: str) -> tuple[Question, ...]:
    """Read a file with a JSON object per line: {"context": text, "choices": [text, …], "answer": index or text}.

    Choices of one question are distinct, and at least two. Files that end in .gz, .bz2, .xz or .zst are decompressed.

    Raises:
      UserError: the file is missing or empty, or a line is not a question; the message has its number.
    """
    return _read(path, _question)


@remembered
def read_labelled(path: str, template: str, labels: tuple[str, ...], words: tuple[str, ...]) -> tuple[Question, ...]:
    """Read a file with a JSON object per line, {"text": text, "label": label}, as questions with a choice per label.

    Args:
      path: the file.
      template: text of the context, in which {text} stands for the text of a line.
      labels: the labels in the file; numbers are compared by their text.
      words: continuation that stands for each label.

    Raises:
      UserError: the file is missing or empty, or a line has no text or another label; the message has its number.
    """

    def question(row: Mapping[str, object], where: str, line: int) -> Question:
        text, label = text_field(row, "text", where), str(row.get("label"))
        if "label" not in row or label not in labels:
            raise UserError(f"{where}: label is {row.get('label')!r}{did_you_mean(label, labels)}")
        return Question(template.replace("{text}", text), words, labels.index(label), line)

    return _read(path, question)


def file_fingerprint(path: str) -> dict[str, object]:
    """Return the digest of the decompressed content of a file."""
    return {"sha256": hashlib.sha256(read_bytes(_file(path))).hexdigest()}


def _file(path: str) -> Path:
    file = local_path(path)
    if not file.is_file():
        raise UserError(f"path is '{path}', which is not a file; expected JSON lines, one question each")
    return file


def _read(path: str, make: Callable[[Mapping[str, object], str, int], Question]) -> tuple[Question, ...]:
    """Return the question of every line that is not blank."""
    questions = []
    for number, line in enumerate(read_lines(_file(path)), 1):
        if line:
            where = f"{path}, line {number}"
            questions.append(make(parse_json_object(line, where), where, number))
    if not questions:
        raise UserError(f"{path} has no lines; expected a JSON object per line")
    return tuple(questions)


def _question(row: Mapping[str, object], where: str, line: int) -> Question:
    context, texts = text_field(row, "context", where), row.get("choices")
    if not isinstance(texts, list) or len(texts) < 2:
        raise UserError(f"{where}: choices is {str(texts)[:40]!r}; expected a list of at least 2 texts")
    choices = tuple(text_field({"choice": text}, "choice", f"{where}: choices[{i}]") for i, text in enumerate(texts))
    if "" in choices or len(set(choices)) < len(choices):
        raise UserError(f"{where}: choices is {str(texts)[:60]}; expected distinct texts that are not empty")
    return Question(context, choices, _answer(row.get("answer"), choices, where), line)


def _answer(answer: object, choices: Sequence[str], where: str) -> int:
    """Return the index of the answer, which is given by its index or by its text."""
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    raise UserError(f"{where}: answer is {answer!r}; expected an index from 0 to {len(choices) - 1}, or a choice")
