"""Laws: properties that every architecture must have, checked by `flaxformer check` and by the tests."""

from flaxformer.laws.check import LAWS, Result, check, check_names, check_subject, distinct_models, scales
from flaxformer.laws.law import Finding, Law, law
from flaxformer.laws.subject import Subject

__all__ = [
    "LAWS",
    "Finding",
    "Law",
    "Result",
    "Subject",
    "check",
    "check_names",
    "check_subject",
    "distinct_models",
    "law",
    "scales",
]
