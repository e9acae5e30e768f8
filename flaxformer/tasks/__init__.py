"""What a model learns: text, images and synthetic tasks, each with pure device-resident `batch(key, step)`."""

from flaxformer.tasks.arithmetic import ModularAddition
from flaxformer.tasks.base import Batch, Source, Task
from flaxformer.tasks.images import Digits, Images
from flaxformer.tasks.pairs import PairedFiles
from flaxformer.tasks.regression import ScaledIndex, TwoTargetAverage
from flaxformer.tasks.sequence_to_sequence import Copy, Reverse, Sort
from flaxformer.tasks.synthetic import AssociativeRecall, Induction
from flaxformer.tasks.text import StandardLibrary, TextFiles

__all__ = [
    "AnyTask",
    "AssociativeRecall",
    "Batch",
    "Copy",
    "Digits",
    "Images",
    "Induction",
    "ModularAddition",
    "PairedFiles",
    "Reverse",
    "ScaledIndex",
    "Sort",
    "Source",
    "StandardLibrary",
    "Task",
    "TextFiles",
    "TwoTargetAverage",
]

AnyTask = (
    StandardLibrary
    | TextFiles
    | PairedFiles
    | Copy
    | Reverse
    | Sort
    | AssociativeRecall
    | Induction
    | ModularAddition
    | ScaledIndex
    | TwoTargetAverage
    | Digits
    | Images
    | Task
)
"""Every task that a run can have: those that a command line can name, and your own."""
