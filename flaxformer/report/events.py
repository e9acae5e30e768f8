"""Events of the log of declarations in words: attempts to replicate, and verifications."""

from flaxformer.analysis.claim_history import seeds_in_words
from flaxformer.analysis.declaration_limits import verification
from flaxformer.store.declaration_log import DeclarationLog
from flaxformer.store.log_entries import Replication, Verification


def sentences(log: DeclarationLog) -> list[str]:
    """Every attempt to replicate, and the last verification, each with its date."""
    entries: list[Replication | Verification] = [*log.of(Replication), *log.of(Verification)[-1:]]
    return [f"{entry.time[:10]}: {sentence(entry)}" for entry in entries]


def sentence(event: Replication | Verification) -> str:
    """An event of the log in one clause."""
    return _replication(event) if isinstance(event, Replication) else verification(event)


def _replication(event: Replication) -> str:
    where = f"at the seeds {seeds_in_words(event.seeds)} in {event.folder}"
    if event.verdicts is None:
        return f"attempt to replicate begun {where}"
    verdicts = "; ".join(f"{text}: {verdict}" for text, verdict in event.verdicts.items())
    return f"replicated {where} ({verdicts or 'no claim'})"
