"""Properties of every task: pure batches, a fixed evaluation set, effective fields, and clear error messages."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tasks.every import every_task, same, shapes, some

from flaxformer.components import (
    Attention,
    Classifier,
    LanguageModel,
    LearnedPositions,
    NoHead,
    Patches,
    Regressor,
    Tokens,
    Vectors,
)
from flaxformer.config import ModelConfig
from flaxformer.core.struct import choices, type_hints
from flaxformer.system.errors import UserError
from flaxformer.tasks import (
    Batch,
    Copy,
    Digits,
    Images,
    Induction,
    ModularAddition,
    PairedFiles,
    ScaledIndex,
    StandardLibrary,
    TextLabels,
    TwoTargetAverage,
)
from flaxformer.tasks.examples import permute, sample_evenly
from flaxformer.tasks.mixture import Mixture
from flaxformer.training import Run


@jax.jit
def calls(source):
    """Return batches inside a scan: of the steps 5, 6 and 5, and of step 5 with another key."""
    keys = jnp.stack([jax.random.key(0), jax.random.key(0), jax.random.key(0), jax.random.key(1)])
    return jax.lax.scan(lambda _, at: (None, source.batch(*at)), None, (keys, jnp.array([5, 6, 5, 5])))[1]


@pytest.fixture(scope="module")
def given(files):
    """Every task with batches."""
    return {task: jax.device_get(calls(task.load())) for task in every_task(files)}


@pytest.mark.long
def test_batches_are_pure_functions_of_key_and_step(given):
    for task, batches in given.items():
        first, other, again, elsewhere = (jax.tree.map(lambda leaf, i=i: leaf[i], batches) for i in range(4))
        jax.tree.map(np.testing.assert_array_equal, first, again)
        assert not np.array_equal(first.inputs, other.inputs), task
        assert not np.array_equal(first.inputs, elsewhere.inputs), task


@pytest.mark.long
def test_batches_are_equal_inside_and_outside_a_scan(given):
    tasks = {type(task): (task, batches) for task, batches in given.items()}
    for task, batches in (tasks[Copy], tasks[PairedFiles], tasks[StandardLibrary]):
        one = task.load().batch(jax.random.key(0), 5)
        jax.tree.map(np.testing.assert_array_equal, one, jax.tree.map(lambda leaf: leaf[0], batches))


@pytest.mark.long
def test_evaluation_set_has_the_shape_of_batches(given):
    for task, batches in given.items():
        evaluation = jax.eval_shape(lambda source: source.evaluation(), task.load())
        assert jax.tree.structure(batches) == jax.tree.structure(evaluation)
        for leaf, every in zip(jax.tree.leaves(batches), jax.tree.leaves(evaluation), strict=True):
            assert leaf.shape == (4, 3, *leaf.shape[2:])
            assert every.shape == (2, *leaf.shape[1:])
            assert every.dtype == leaf.dtype


def test_loading_twice_gives_the_same_data(files):
    for task in every_task(files):
        jax.tree.map(np.testing.assert_array_equal, task.load(), task.load())
    assert jax.tree.leaves(Copy().load()) == []


def test_shapes_dtypes_and_ranges_agree_with_the_task(given):
    for task, batch in given.items():
        assert batch.weights.dtype == np.float32
        assert batch.weights.sum() > 0
        if task.vocabulary:
            assert batch.inputs.shape == (4, 3, task.sequence_length)
            per_token = () if isinstance(task, TextLabels) else (task.sequence_length,)
            assert batch.targets.shape == batch.weights.shape == (4, 3, *per_token)
            tokens = [batch.inputs, batch.targets, *([] if batch.source is None else [batch.source])]
            assert all(leaf.dtype == np.int32 for leaf in tokens)
            assert min(leaf.min() for leaf in tokens) >= 0
            assert max(leaf.max() for leaf in tokens) < task.vocabulary
        else:
            assert batch.inputs.dtype == np.float32
        assert (batch.source is None) == (task.source_length == 0)
        assert batch.source is None or batch.source.shape == (4, 3, task.source_length)


@pytest.mark.every(6, "long")
@pytest.mark.every(4)
@pytest.mark.parametrize("number", range(36))
def test_every_field_of_a_task_changes_its_data_or_its_scores(files, number):
    base, changes = list(every_task(files).items())[number]
    assert {field.name for field in dataclasses.fields(base)} == set(changes)
    before = shapes(base)
    others = {
        name: base.replace(**(value if isinstance(value, dict) else {name: value})) for name, value in changes.items()
    }
    kept = {name: other for name, other in others.items() if other.metrics(True) == base.metrics(True)}
    alike = {name: other for name, other in kept.items() if shapes(other) == before}
    numbers = some(base) if alike else None
    for name, other in alike.items():
        assert not same(numbers, some(other)), f"{type(base).__name__}.{name}"


def test_every_task_of_a_run_is_tested_here_and_has_no_leaves(files):
    offered = choices(type_hints(Run)["task"]).values()
    own = {kind for kind in offered if kind.__module__.startswith("flaxformer.")}
    assert {type(task) for task in every_task(files)} == own - {Mixture}  # has leaves; see test_mixture.py
    assert [jax.tree.leaves(task) for task in every_task(files)] == [[]] * 36


def test_evenly_sampled_rows_are_scored_once():
    places, counted = sample_evenly(11, 4)
    np.testing.assert_array_equal(places, [0, 3, 6, 10])
    np.testing.assert_array_equal(counted, 1)
    places, counted = sample_evenly(3, 5)
    np.testing.assert_array_equal(places[counted > 0], [0, 1, 2])
    assert len(places) == 5


def test_permutation_depends_only_on_the_seed():
    np.testing.assert_array_equal(permute(7, 0), [6, 2, 1, 3, 0, 5, 4])  # the same on every machine, for ever
    assert sorted(permute(1000, 3)) == list(range(1000))
    assert not np.array_equal(permute(1000, 3), permute(1000, 4))


def test_tokens_read_includes_source_and_patches():
    assert Copy(length=5).tokens_read(ModelConfig()) == 10
    assert Copy(length=5, form="paired").tokens_read(ModelConfig()) == 10
    image = ModelConfig(inputs=Patches(height=8, width=8, size=4, class_token=True), head=Classifier(classes=10))
    assert Digits().tokens_read(image) == 5


CONFIG = ModelConfig(vocabulary=17, layers=1, d_model=12, attention=Attention(heads=3))
BOTH = CONFIG.with_encoder()
SHORT = LearnedPositions(max_length=7)
VECTORS = CONFIG.replace(inputs=Vectors(width=3), head=Regressor(numbers=3))
IMAGES = CONFIG.replace(inputs=Patches(height=8, width=8, size=2), head=Classifier(classes=10))


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        (Copy(), CONFIG.replace(vocabulary=16), r"model\.vocabulary is 16; expected at least the task's 17 tokens"),
        (Copy(), CONFIG.replace(positions=SHORT), "model.positions.max_length is 7; .*16 tokens"),
        (Copy(), VECTORS, r"model.inputs is Vectors\(width=3\); expected Tokens"),
        (Copy(), CONFIG.replace(head=Classifier(classes=17)), r"model.head is Classifier.*expected LanguageModel"),
        (Copy(), CONFIG.replace(d_memory=5), "model.d_memory is 5; expected None"),
        (Copy(), BOTH, "model.encoder is given; expected None"),
        (
            Copy(),
            CONFIG.replace(mask_pattern="bidirectional"),
            'model.mask_pattern is "bidirectional"; expected "causal" or "prefix"',
        ),
        (Copy(form="paired"), CONFIG, r"model.encoder is None; expected one, as model.with_encoder\(\)"),
        (Copy(form="paired"), CONFIG.with_encoder(vocabulary=11), "model.encoder.vocabulary is 11; .* 17 tokens"),
        (Copy(form="paired"), CONFIG.with_encoder(positions=SHORT), "model.encoder.positions.max_length is 7; .*8 tok"),
        (Copy(form="paired"), CONFIG.with_encoder(inputs=Vectors(width=2)), "model.encoder.inputs is Vectors"),
        (ScaledIndex(width=3), CONFIG, r"model.inputs is Tokens.*expected Vectors\(width=3\)"),
        (ScaledIndex(width=2), VECTORS, r"model.inputs is Vectors\(width=3\); expected Vectors\(width=2\)"),
        (ScaledIndex(width=3), VECTORS.replace(head=LanguageModel()), "model.head is LanguageModel"),
        (ScaledIndex(width=3), VECTORS.replace(head=Regressor(numbers=2)), "numbers=2.*expected Regressor.*numbers=3"),
        (ScaledIndex(width=3), VECTORS.replace(head=Regressor(numbers=3, pool="mean")), "pool='mean'.*pool='none'"),
        (ScaledIndex(width=3), VECTORS.replace(positions=SHORT), "max_length is 7; .*16 tokens"),
        (TwoTargetAverage(key_width=1, value_width=1), VECTORS, "pool='none'.*numbers=1, pool='last'"),
        (Digits(), CONFIG, r"model.inputs is Tokens.*expected Patches\(height=8, width=8, channels=1, size=…\)"),
        (Digits(), IMAGES.replace(head=Classifier(classes=9)), "classes=9.*expected Classifier.classes=10"),
        (Digits(), IMAGES.replace(head=Classifier(classes=10, pool="none")), "pool='none'.*one output per image"),
        (Digits(), IMAGES.replace(positions=SHORT), "max_length is 7; expected at least the 16 patches"),
        (Digits(), IMAGES.replace(d_memory=5), "model.d_memory is 5; expected None"),
    ],
)
def test_unsuitable_model_is_refused(task, model, message):
    with pytest.raises(UserError, match=message):
        Run(task=task, model=model)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("task", "model"),
    [
        (Copy(), CONFIG),
        (Copy(), CONFIG.replace(mask_pattern="prefix")),
        (Induction(), CONFIG.replace(mask_pattern="bidirectional")),
        (ModularAddition(modulus=7), CONFIG.replace(mask_pattern="bidirectional")),
        (Copy(form="paired"), BOTH),
        (Copy(form="paired"), CONFIG.with_encoder(inputs=Tokens(shared=True), head=NoHead())),
        (ScaledIndex(width=3), VECTORS),
        (ScaledIndex(width=3), VECTORS.replace(head=Regressor(numbers=3, bias=False))),
        (TwoTargetAverage(key_width=1, value_width=1), VECTORS.replace(head=Regressor(numbers=1, pool="last"))),
        (Digits(), IMAGES),
    ],
)
def test_suitable_model_is_accepted(task, model):
    assert Run(task=task, model=model).task is task


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Copy(form="pair"), "Copy.form is 'pair'; did you mean 'paired'"),
        (lambda: Induction(length=2), "Induction.length is 2; expected a number at least 3"),
        (lambda: ModularAddition(fraction=1), "fraction is 1.0; expected a number below 1"),
        (lambda: ModularAddition(modulus=2, fraction=0.1), "fraction is 0.1, 0 of the 4 pairs; expected at least one"),
        (lambda: ModularAddition(modulus=2, fraction=0.9), "fraction is 0.9, 4 of the 4 pairs; expected at least one"),
        (lambda: TwoTargetAverage(items=1), "items is 1; expected a number at least 2"),
        (lambda: Images(), "path"),
        (lambda: PairedFiles(source_path="a", target_path="b", validation_tenths=10), "validation_tenths is 10"),
        (lambda: StandardLibrary(tokenizer=3), "tokenizer is 3; expected str or None"),
    ],
)
def test_invalid_fields_are_refused(make, message):
    with pytest.raises((UserError, TypeError), match=message):
        make()


def test_batch_has_the_arguments_of_apply():
    batch = Copy(form="paired", length=3).load().batch(jax.random.key(0), 0)
    assert isinstance(batch, Batch)
    assert batch.arguments["source"] is batch.source
    np.testing.assert_array_equal(batch.arguments["prefix"], np.ones(16))
    assert batch.arguments["valid"] is None
