"""Events of the log of declarations in words: attempts to replicate, and verifications."""

from flaxformer.digests import JsonObject
from flaxformer.store.declaration_log import DeclarationLog
from flaxformer.study.claim_history import seeds_in_words
from flaxformer.wording import counted, listed

MOST_NAMED = 6
"""Largest number of trials that a sentence names."""


def sentences(log: DeclarationLog) -> list[str]:
    """Every attempt to replicate, and the last verification, each with its date."""
    found = [*log.of("replication"), *log.of("verification")[-1:]]
    return [f"{entry['time'][:10]}: {sentence(entry)}" for entry in found]


def sentence(event: JsonObject) -> str:
    """An event of the log in one clause."""
    return _replication(event) if event["kind"] == "replication" else verification(event)


def _replication(event: JsonObject) -> str:
    where = f"at the seeds {seeds_in_words(event['seeds'])} in {event['folder']}"
    if "verdicts" not in event:
        return f"attempt to replicate begun {where}"
    verdicts = "; ".join(f"{text}: {verdict}" for text, verdict in event["verdicts"].items())
    return f"replicated {where} ({verdicts or 'no claim'})"


def verification(event: JsonObject) -> str:
    """The result of a verification in one clause."""
    n, different = len(event["trials"]), event["different"]
    tried = f"{n} of {counted(event['finished'], 'finished trial')} {'was' if n == 1 else 'were'} trained again"
    if not different:
        return f"{tried} by the code {event['source']}: bitwise equal"
    names = [*list(different)[:MOST_NAMED], *(["others"] if len(different) > MOST_NAMED else [])]
    verb = "differs" if len(different) == 1 else "differ"
    return f"{tried} by the code {event['source']}: {len(different)} {verb} ({listed(names)})"
