"""Words of a command line that mean a field or an option in another form than its own; nothing here imports JAX."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from flaxformer.system.errors import UserError

PATH = r"(?:model|task|optimizer|training|seeds|init|loss_terms|adapter)(?:\.\w+)+"
"""A field below one of those of a `Run`."""
FIELDS = {
    "batch-size": "task.batch_size",
    "d-model": "model.d_model",
    "dropout": "model.dropout",
    "evaluate-every": "training.evaluate_every",
    "heads": "model.attention.heads",
    "layers": "model.layers",
    "learning-rate": "optimizer.learning_rate",
    "length": "task.length",
    "lr": "optimizer.learning_rate",
    "optimizer": "optimizer",
    "precision": "training.precision",
    "steps": "training.steps",
    "warmup": "optimizer.warmup_steps",
    "warmup-steps": "optimizer.warmup_steps",
    "weight-decay": "optimizer.weight_decay",
}
"""Path of a field by the option that other programs have for it."""


def check_field_words(words: Sequence[str], options: Collection[str]) -> None:
    """Check that a word that means a field is PATH=VALUE, and one that means an option is the option.

    Args:
      words: the words after the name of a command that changes fields.
      options: options of the command, such as "--seeds".

    Raises:
      UserError: a path without a value, one with spaces around "=", a field as an option, or an option as a field.
    """
    for before, word, after in zip(("", *words), words, (*words[1:], ""), strict=False):
        name, equals, value = (part.strip() for part in word.partition("="))
        if equals and f"--{name}" in options and not value[:1].isupper():  # but seeds=Seeds(data=0)
            raise UserError(f"{word!r} is no field of the run; expected --{name} {value}")
        if name in options or before in options or word.endswith(".py") or Path(word).exists():
            continue
        path = FIELDS.get(name[2:].replace("_", "-"), "") if name.startswith("--") else ""
        if re.fullmatch(rf"(?:--)?{PATH}", name):
            path = name.removeprefix("--")
        if path and (word.startswith("--") or not equals or word != f"{name}={value}"):
            shown = value or ("VALUE" if after.startswith("-") or "=" in after else after) or "VALUE"
            raise UserError(f"{word!r} is no option; expected the field and its value in one word: {path}={shown}")
