"""Seeds and levels of attempts, which follow from a ledger's declaration and from the attempts before."""

from typing import Protocol

from flaxformer.statistics import online_testing


class Rules(Protocol):
    """Fields of a ledger's declaration (`declare.Ledger`, `log.Begun`) that its seeds and levels depend on."""

    @property
    def attempts(self) -> int: ...
    @property
    def seeds(self) -> int: ...
    @property
    def first_seed(self) -> int: ...
    @property
    def tuning_seeds(self) -> int: ...
    @property
    def confirmation_seeds(self) -> int: ...
    @property
    def false_keeps(self) -> float: ...


def seeds_of_confirmation(rules: Rules) -> range:
    """Return the seeds of the confirmation, which no attempt uses."""
    return range(rules.first_seed, rules.first_seed + rules.confirmation_seeds)


def seeds_of_tuning(rules: Rules) -> range:
    """Return the seeds at which learning rates are tried, which come after those of the confirmation."""
    first = seeds_of_confirmation(rules).stop
    return range(first, first + rules.tuning_seeds)


def seeds_of(rules: Rules, number: int) -> range:
    """Return the seeds of an attempt, numbered from 1; they come after those of tuning."""
    first = seeds_of_tuning(rules).stop + (number - 1) * rules.seeds
    return range(first, first + rules.seeds)


def level(rules: Rules, number: int, kept: int) -> float:
    """Return the level α_t at which an attempt is kept, from the number of those kept before it."""
    return online_testing.level(number, kept, rules.attempts, rules.false_keeps)
