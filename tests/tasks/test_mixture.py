"""Mixtures of tasks: frequencies follow the weights, batches are pure functions, stages change the weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.core.params import fold_in_name
from flaxformer.system.errors import UserError
from flaxformer.tasks import (
    Copy,
    Domain,
    Induction,
    Mixture,
    MixtureStage,
    PairedFiles,
    Reverse,
    Sort,
    TextFiles,
    TokenFiles,
)
from flaxformer.tasks.batch import Source
from flaxformer.tasks.host import HostSource, gather_batches, prefetch
from flaxformer.tasks.mixture import draw_domains, weights_at
from flaxformer.tasks.sharded import ShardedSource
from flaxformer.training import Run

TASKS = {"a": Copy(symbols=5, length=3), "b": Reverse(symbols=5, length=3), "c": Sort(symbols=5, length=3)}
MODEL = ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11))
ROWS = 7


def mix(*weights, stages=(), **fields):
    domains = tuple(
        Domain(name=name, task=task, weight=w) for (name, task), w in zip(TASKS.items(), weights, strict=False)
    )
    return Mixture(domains=domains, stages=stages, **{"batch_size": ROWS, "evaluation_batches": 2} | fields)


def drawn(weights, steps=2000, seed=0):
    """The domain of every example of some steps, [steps, ROWS]."""
    draw = jax.vmap(lambda step: draw_domains(jax.random.key(seed), step, weights, ROWS))
    return np.asarray(jax.jit(draw)(jnp.arange(steps)))


DRAW = jax.jit(lambda source, key, step: source.batch(key, step))


def batch(mixture, step, seed=0):
    """A batch of a mixture; compiled once per number of domains and of stages."""
    return DRAW(mixture.load(), jax.random.key(seed), step)


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def same_rows(one, other):
    """True at the rows that two batches have in common."""
    both = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return np.all([(np.asarray(x) == np.asarray(y)).reshape(ROWS, -1).all(1) for x, y in both], axis=0)


@pytest.mark.parametrize("weights", [(1, 1), (0.7, 0.2, 0.1), (5, 0, 13), (0, 0, 2), (3, 0, 0), (1e-3, 1.0, 1e3)])
def test_frequencies_follow_the_weights(weights):
    counts = np.bincount(drawn(weights).ravel(), minlength=len(weights))
    expected = np.array(weights) / sum(weights)
    assert counts.sum() == 2000 * ROWS
    assert len(counts) == len(weights)
    for count, p in zip(counts, expected, strict=True):
        low, high = stats.binom.interval(1 - 1e-6, counts.sum(), p)
        assert low <= count <= high, (weights, counts)
    assert not counts[expected == 0].any()


def test_draws_are_independent_over_places_and_steps():
    found = drawn((0.3, 0.7)).astype(float)
    assert abs(np.corrcoef(found[:-1].ravel(), found[1:].ravel())[0, 1]) < 0.04
    assert abs(np.corrcoef(found[:, 0], found[:, 1])[0, 1]) < 0.1


def test_domains_are_those_of_the_inverse_distribution_function():
    key, weights = jax.random.key(3), (0.5, 2.0, 0.0, 1.5)
    own = np.asarray(draw_domains(key, 11, weights, 101))
    u = np.asarray(jax.random.uniform(jax.random.fold_in(key, 11), (101,)))
    edges = np.cumsum(weights) / np.sum(weights)
    assert (own == np.searchsorted(edges, u, side="right")).all()
    assert set(own) == {0, 1, 3}


@pytest.mark.parametrize("weights", [(0.0, 1.0), (1.0, 0.0), (0.0, 1.0, 0.0)])
def test_a_domain_alone_gives_its_own_batches_at_every_edge_of_the_draws(weights):
    edges = jnp.asarray([0.0, np.nextafter(np.float32(1), np.float32(0))])
    # The smallest and the largest uniform number: no draw may leave the domains with weight.
    totals = np.cumsum(np.float32(weights))
    for u in edges:
        place = np.float32(u) * totals[-1]
        assert sum(place >= one for one in totals[:-1]) == weights.index(1.0)


def alone(name, step, seed=0):
    """A batch of a domain, from its own task: with a key of its name, and the step."""
    key = fold_in_name(fold_in_name(jax.random.key(seed), "domains"), name)
    return DRAW(TASKS[name].replace(batch_size=ROWS).load(), key, step)


def test_a_batch_has_the_rows_of_its_domains():
    for step in range(4):
        own = batch(mix(1, 2, 1), step)
        key = fold_in_name(jax.random.key(0), "mixture")
        domains = np.asarray(draw_domains(key, step, (1, 2, 1), ROWS))
        same = np.stack([same_rows(own, alone(name, step)) for name in TASKS])
        assert same[domains, np.arange(ROWS)].all()
        assert same.sum() < 2 * ROWS  # domains differ
        assert_equal(batch(mix(0, 0, 1), step), alone("c", step))


def test_arms_with_other_weights_share_every_example_that_both_draw():
    changed = sum(ROWS - same_rows(batch(mix(0.8, 0.2), t), batch(mix(0.5, 0.5), t)).sum() for t in range(30))
    low, high = stats.binom.interval(1 - 1e-6, 30 * ROWS, 0.3)  # only where u is between the thresholds
    assert low / 2 < changed <= high  # two domains can agree by chance


def test_batches_are_pure_functions_of_key_and_step():
    own = mix(1, 1, 1)
    first = batch(own, 3)
    assert_equal(first, batch(own, 3))
    assert_equal(first, own.load().batch(jax.random.key(0), 3))
    assert not same_rows(first, batch(own, 4)).all()
    assert not same_rows(first, batch(own, 3, seed=1)).all()


def test_weights_are_leaves_and_the_source_takes_those_of_a_run():
    one, other = mix(1, 2), mix(0, 1)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.leaves(one) == [1.0, 2.0]
    assert one.load().with_numbers(other).weights == ((0.0, 1.0), ())
    outer = Mixture(domains=(Domain(name="inner", task=one), Domain(name="c", task=TASKS["c"])), batch_size=ROWS)
    inner = outer.replace(domains=(outer.domains[0].replace(task=other, weight=3), outer.domains[1]))
    changed = outer.load().with_numbers(inner)
    assert (changed.weights, changed.sources[0].weights) == (((3.0, 1.0), ()), ((0.0, 1.0), ()))
    assert_equal(DRAW(changed, jax.random.key(0), 2), batch(inner, 2))


def test_a_sharded_source_takes_the_numbers_of_a_run():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    changed = ShardedSource(mix(1, 2).load(), mesh).with_numbers(mix(0, 1))
    assert changed.source.weights == ((0.0, 1.0), ())


@pytest.mark.parametrize(
    ("step", "expected"), [(0, (1, 2)), (4, (1, 2)), (5, (3, 0)), (10, (3, 0)), (11, (0, 7)), (99, (0, 7))]
)
def test_stages_change_the_weights_at_their_first_step(step, expected):
    own = mix(1, 2, stages=(MixtureStage(start=5, weights=(3, 0)), MixtureStage(start=11, weights=(0.0, 7.0))))
    assert jax.tree.leaves(own) == [1.0, 2.0, 5, 3.0, 0.0, 11, 0.0, 7.0]
    assert tuple(map(float, weights_at(own.schedule, step))) == expected
    traced = jax.jit(lambda step: weights_at(own.schedule, step))(step)
    assert tuple(map(float, traced)) == expected


def test_a_stage_gives_the_batches_of_its_weights():
    staged = mix(1, 0, stages=(MixtureStage(start=3, weights=(0, 1)),))
    for step in (0, 2, 3, 5):
        assert_equal(batch(staged, step), batch(mix(1, 0) if step < 3 else mix(0, 1), step))


@pytest.mark.slow
def test_the_evaluation_set_holds_that_of_each_domain_whatever_the_weights():
    for weights in ((1, 2, 3), (0, 0, 1)):
        own = mix(*weights)
        found = own.load().evaluation()
        assert own.evaluation_shape == (6, ROWS)
        assert found.inputs.shape[:2] == (6, ROWS)
        for number, (name, task) in enumerate(own.evaluation_parts().items()):
            part = jax.tree.map(lambda x, number=number: x[2 * number : 2 * number + 2], found)
            assert_equal(part, task.load().evaluation())
            assert name == "abc"[number]
        assert own.load().test().inputs.shape[:2] == (6, ROWS)


def test_a_mixture_without_a_test_set_in_one_domain_has_none():
    class Untested(Source):
        def test(self):
            return None

    own = mix(1, 1).load()
    assert own.replace(sources=(own.sources[0], Untested())).test() is None


def text(files, **fields):
    return TextFiles(path=str(files / "one"), length=11, **fields)


def test_data_on_the_host_are_mixed_to_the_same_batches(files, monkeypatch):
    folders = [TokenFiles(path=str(files / f"{name}.tokens"), length=11) for name in ("one", "two")]
    domains = tuple(Domain(name=n, task=t, weight=w) for n, t, w in zip("ab", folders, (1.0, 2.0), strict=True))
    own = Mixture(domains=domains, batch_size=5, evaluation_batches=2, stages=(MixtureStage(start=2, weights=(1, 0)),))
    device = own.load()
    monkeypatch.setattr("flaxformer.tasks.token_files.RESIDENT", 0)
    host = own.load()
    assert host.on_host
    assert not device.on_host
    assert isinstance(host.sources[0], HostSource)
    assert_equal(host.evaluation(), device.evaluation())
    key, step = jax.random.key(7), 0
    for chunk, count in prefetch(functools.partial(gather_batches, host, key), first=0, last=5, steps=2):
        for _ in range(count):
            assert_equal(chunk.batch(key, step), DRAW(device, key, step))
            step += 1
    assert step == 5


def test_fingerprint_and_overlap_are_those_of_the_domains(files):
    tasks = {"x": text(files), "y": TextFiles(path=str(files / "two"), length=11)}
    own = Mixture(domains=tuple(Domain(name=n, task=t) for n, t in tasks.items()), batch_size=3, evaluation_batches=2)
    found = own.fingerprint()
    assert {key.partition(" ")[0] for key in found} == {"x", "y"}
    assert found["x sha256"] == tasks["x"].fingerprint()["sha256"] != found["y sha256"]
    parts = [task.overlap() for task in own.tasks]
    total = own.overlap()
    assert (total.examples, total.in_training) == (sum(p.examples for p in parts), sum(p.in_training for p in parts))
    assert own.load().training_examples() is None


BAD = {
    "negative": (lambda: mix(1, -1), "Domain.weight is -1.0; expected a number at least 0"),
    "all zero": (lambda: mix(0, 0), "Mixture.domains have the weights (0.0, 0.0); expected numbers of at least 0 with"),
    "lengths": (
        lambda: Mixture(domains=(Domain(name="a", task=Copy(length=3)), Domain(name="b", task=Copy(length=5)))),
        "Mixture.domains differ in sequence_length: a 6, b 10; expected one value",
    ),
    "names": (
        lambda: Mixture(domains=(Domain(name="a", task=Copy()), Domain(name="a", task=Sort()))),
        "Mixture.domains has the name 'a' more than once; expected different names",
    ),
    "reserved": (lambda: Domain(name="test_x", task=Copy()), "Domain.name is 'test_x', which begins like"),
    "none": (lambda: Mixture(domains=()), "Mixture.domains is (); expected at least one Domain"),
    "stage count": (
        lambda: mix(1, 1, stages=(MixtureStage(start=3, weights=(1, 2, 3)),)),
        "Mixture.stages.0.weights is (1.0, 2.0, 3.0); expected 2 numbers, one per domain",
    ),
    "stage sum": (
        lambda: mix(1, 1, stages=(MixtureStage(start=3, weights=(0, 0)),)),
        "Mixture.stages.0.weights is (0.0, 0.0); expected",
    ),
    "stage order": (
        lambda: mix(1, 1, stages=(MixtureStage(start=3, weights=(1, 0)), MixtureStage(start=3, weights=(0, 1)))),
        "Mixture.stages start at [3, 3]; expected increasing steps",
    ),
    "vocabularies": (
        lambda: Run(
            model=MODEL.replace(vocabulary=20),
            task=Mixture(domains=(Domain(name="a", task=Copy(symbols=5)), Domain(name="b", task=Copy(symbols=7)))),
        ),
        "domains have different vocabularies: a 6, b 8; expected one, of the same tokenizer",
    ),
    "model": (
        lambda: Run(model=MODEL.replace(vocabulary=5), task=mix(1, 1)),
        "domain 'a': model.vocabulary is 5; expected at least the task's 6 tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_have_messages(name):
    make, message = BAD[name]
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)


def test_domains_with_other_fields_and_buckets_are_refused(files):
    pairs = PairedFiles(
        source_path=str(files / "one.en"), target_path=str(files / "one.de"), max_length=19, form="joined", batch_size=3
    )
    same = functools.partial(Domain, name="pairs")
    with pytest.raises(UserError, match=r"task\.buckets is 3; expected 1 in a mixture"):
        Run(
            model=MODEL.replace(vocabulary=300),
            task=Mixture(domains=(same(task=pairs.replace(buckets=3)),), batch_size=3),
        )
    length = pairs.sequence_length
    own = Mixture(domains=(same(task=pairs), Domain(name="copy", task=Induction(symbols=5, length=length))))
    with pytest.raises(UserError, match=r"domains have batches with different fields: .*valid"):
        own.load()


def test_references_are_those_of_one_simple_model_per_domain(files):
    """Their losses are sums over the targets of all domains, of which these have equal numbers."""
    tasks = {"x": text(files), "y": TextFiles(path=str(files / "two"), length=11)}
    own = Mixture(domains=tuple(Domain(name=n, task=t) for n, t in tasks.items()), batch_size=3, evaluation_batches=2)
    found, parts = own.references(), [task.references() for task in own.tasks]
    assert list(found) == [f"{name}, one per domain" for name in parts[0]]
    assert len(parts[0]) > 1
    for name in parts[0]:
        assert found[f"{name}, one per domain"] == pytest.approx((parts[0][name] + parts[1][name]) / 2)
    assert parts[0] != parts[1]
    assert mix(1, 2).references() == {}
