"""Tasks: text, images and synthetic tasks, each with a pure `batch(key, step)`."""

from flaxformer.tasks.arithmetic import ModularAddition
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.choices import MultipleChoice, TextClassification
from flaxformer.tasks.corrupted import Corrupted, SpanCorruption
from flaxformer.tasks.evaluations import Evaluation, EvaluationData, EvaluationSet
from flaxformer.tasks.images import Digits, Images
from flaxformer.tasks.labels import TextLabels
from flaxformer.tasks.masked import MaskedText, MaskedTokens
from flaxformer.tasks.mixture import Domain, Mixture, MixtureStage
from flaxformer.tasks.overlap import Overlap
from flaxformer.tasks.paired_rows import Pairs
from flaxformer.tasks.pairs import PairedFiles, PairedTokens, TextPair
from flaxformer.tasks.records import Records
from flaxformer.tasks.regression import ScaledIndex, TwoTargetAverage, VectorTask
from flaxformer.tasks.sequence_to_sequence import Copy, Reverse, Sort
from flaxformer.tasks.synthetic import (
    AssociativeRecall,
    Induction,
    SyntheticTask,
    draw_distinct,
    join_pieces,
    next_token,
)
from flaxformer.tasks.table_rows import TableRows
from flaxformer.tasks.text import StandardLibrary, TextFiles
from flaxformer.tasks.token_files import TokenFiles

__all__ = [
    "AssociativeRecall",
    "Batch",
    "Copy",
    "Corrupted",
    "Digits",
    "Domain",
    "Evaluation",
    "EvaluationData",
    "EvaluationSet",
    "Images",
    "Induction",
    "MaskedText",
    "MaskedTokens",
    "Mixture",
    "MixtureStage",
    "ModularAddition",
    "MultipleChoice",
    "Overlap",
    "PairedFiles",
    "PairedTokens",
    "Pairs",
    "Records",
    "Reverse",
    "ScaledIndex",
    "Sort",
    "Source",
    "SpanCorruption",
    "StandardLibrary",
    "SyntheticTask",
    "TableRows",
    "Task",
    "TextClassification",
    "TextFiles",
    "TextLabels",
    "TextPair",
    "TokenFiles",
    "TwoTargetAverage",
    "VectorTask",
    "draw_distinct",
    "join_pieces",
    "next_token",
]
