"""Events of the log of declarations in words: attempts to replicate, and verifications."""

from flaxformer.analysis.claim_history import seeds_in_words
from flaxformer.analysis.declaration_limits import verification
from flaxformer.store.declaration_log import DeclarationLog
from flaxformer.system.digests import JsonObject


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
