"""Laws find faults that appear under a condition alone, and raise no false alarm on unusual components."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest
from conditional_faults import CONDITIONS, OF_TRAINING, run_under
from faulty_components import run_of
from sound_components import SOUND, SOUND_OPTIMIZERS

from flaxformer.cli.check import how_to_repair
from flaxformer.components import LanguageModel, Norm
from flaxformer.laws import LAWS, check
from flaxformer.laws.law import NOT_FINITE, violation
from flaxformer.laws.updates import check_updates
from flaxformer.training import Adafactor, Lamb, Lion, Muon, Optimizer, ScheduleFree

DEFAULT = {
    ("causality", "late"),
    ("padding", "before"),
    ("batch", "8 sequences"),
    ("decoding", "window of 14 tokens"),
    ("precision", "square in float16"),
    ("draws", "same in each layer and step"),
    ("updates", "number of weights"),
    ("rate", "last step"),
}
SOUND_BY_DEFAULT = {"noise", "mixer that reads no positions"}


@pytest.fixture(autouse=True, scope="module")
def programs_are_dropped():
    """The laws compile many programs that no other test needs."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def components_may_promote_ranks():
    """The components here are written as users write them."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.every(7, "long")
@pytest.mark.parametrize(
    ("law", "condition"),
    [pytest.param(*one, marks=() if one in DEFAULT else pytest.mark.slow) for one in (*CONDITIONS, *OF_TRAINING)],
)
def test_a_fault_under_a_condition_violates_its_law(law, condition):
    words, _ = (CONDITIONS | OF_TRAINING)[law, condition]
    [result] = check(run_under(law, condition), [law])
    assert result.finding.is_violated, result
    assert words in result.finding.words


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name if name in SOUND_BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in SOUND]
)
def test_an_unusual_component_raises_no_false_alarm(name):
    laws, changes = SOUND[name]
    results = {result.law: result.finding for result in check(run_of(**changes), laws)}
    assert not {law: one.words for law, one in results.items() if one.is_violated}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SOUND)
def test_an_unusual_component_passes_every_law(name):
    results = {result.law: result.finding for result in check(run_of(**SOUND[name][1]))}
    assert not {law: one.words for law, one in results.items() if one.is_violated}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name if name == "global norm" else pytest.param(name, marks=pytest.mark.slow) for name in SOUND_OPTIMIZERS]
)
def test_an_unusual_optimizer_raises_no_false_alarm(name):
    finding = check_updates(run_of().replace(optimizer=SOUND_OPTIMIZERS[name]))
    assert not finding.is_violated, finding


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", [Muon(), Lamb(), Adafactor(), Lion(), ScheduleFree()], ids=lambda o: type(o).__name__
)
def test_optimizers_of_the_package_update_each_weight_by_itself(optimizer):
    finding = check_updates(run_of().replace(optimizer=optimizer))
    assert not finding.is_violated, finding


def test_positions_that_no_mixer_reads_are_named_with_what_to_write():
    [result] = check(run_of(**SOUND["mixer that reads no positions"][1]), ["fields"])
    words = "WindowedSum reads no Rotary, which changes nothing here: use positions=NoPositions()"
    assert result.finding.words == words


class MeanOfSizes(Norm):
    """x / mean |x|, which is 0/0 for a vector of zeros."""

    def apply(self, weights, x, context):
        return x / jnp.abs(x).mean(-1, keepdims=True)


def test_a_number_that_is_not_finite_is_explained_before_the_repair_of_its_law():
    [result] = check(run_of(norm_kind=MeanOfSizes()), ["padding"])
    assert (result.finding.is_violated, result.finding.repair) == (True, NOT_FINITE), result
    text = "".join(words for words, _ in how_to_repair([("own", result)]))
    assert f"To repair: {NOT_FINITE}. Or: {LAWS['padding'].repair}." in text
    ordinary = dataclasses.replace(result, finding=violation("outputs differ"))
    assert f"To repair: {LAWS['padding'].repair}." in "".join(words for words, _ in how_to_repair([("own", ordinary)]))


class WithSign(Optimizer):
    """Adam as a whole update of optax, whose sign the package changes once more."""

    def direction(self):
        return optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


@pytest.mark.parametrize("decay", [0.0, 10.0])
def test_an_optimizer_that_ascends_violates_its_law(decay):
    finding = check_updates(run_of().replace(optimizer=WithSign(weight_decay=decay)))
    assert "the loss rises" in finding.words
    assert "leave out the sign" in LAWS["updates"].repairs(finding)
    assert LAWS["updates"].repair not in LAWS["updates"].repairs(finding)


class ParityHead(LanguageModel):
    """Counts an answer of the right parity; reads the fields that the package's head reads."""

    def accuracy(self, output, targets, weights):
        return ((output.argmax(-1) % 2 == targets % 2) * weights).sum(), weights.sum()


def test_an_inherited_field_that_the_package_does_not_read_either_is_not_idle():
    [result] = check(run_of(head=ParityHead()), ["fields"])
    assert not result.finding.is_violated, result


def test_every_law_says_how_to_repair_a_component():
    assert not [law.name for law in LAWS.values() if not law.repair or law.repair.endswith(".")]
