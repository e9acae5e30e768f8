"""What a model learns: text and synthetic tasks, with pure device-resident `batch(key, step)`."""

from flaxformer.tasks.base import Batch, Source, Task
from flaxformer.tasks.synthetic import AssociativeRecall, Copy
from flaxformer.tasks.text import StandardLibrary, TextFiles

__all__ = ["AssociativeRecall", "Batch", "Copy", "Source", "StandardLibrary", "Task", "TextFiles"]
