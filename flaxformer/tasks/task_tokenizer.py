"""Tokenizer of the text of a task."""

from flaxformer.data.tokenizer import Tokenizer, read_tokenizer
from flaxformer.tasks.base import Task
from flaxformer.tasks.mixture import Mixture
from flaxformer.tasks.pairs import PairTask
from flaxformer.tasks.text import TextTask
from flaxformer.tasks.token_files import TokenFiles


def text_of(task: Task) -> Tokenizer | None:
    """Return the tokenizer that decodes the tokens of a task; None for a task that is not of text."""
    match task:
        case PairTask():
            return task.encoding
        case TextTask():
            return read_tokenizer(task.tokenizer)
        case TokenFiles():
            return read_tokenizer(task.folder.tokenizer_path)
        case Mixture() if not isinstance(task.domains[0].task, PairTask):
            return text_of(task.domains[0].task)
    return None
