"""Masked tokens and span corruption: inputs, targets, frequencies, and references."""

import itertools
from collections import Counter

import jax
import numpy as np
import pytest

from flaxformer import model
from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.system.errors import UserError
from flaxformer.tasks import MaskedTokens, SpanCorruption, TextFiles, TokenFiles
from flaxformer.training import Run

SIZES = {"batch_size": 61, "evaluation_batches": 3}


def text(files, **changes):
    return TextFiles(path=str(files / "one"), **({"length": 41} | changes))


@pytest.fixture(scope="module")
def masked(files):
    task = MaskedTokens(text=text(files), **SIZES)
    return task, jax.device_get(task.load().batch(jax.random.key(0), 7))


@pytest.fixture(scope="module")
def cut(files):
    task = SpanCorruption(text=text(files), density=0.25, mean_span=3, **SIZES)
    return task, jax.device_get(task.load().batch(jax.random.key(0), 7))


def windows(task):
    """Return the windows before corruption."""
    plain = task.text.replace(**SIZES).load()
    return np.asarray(plain.batch(jax.random.key(0), 7).inputs)


def test_masking_scores_a_share_of_each_window_and_keeps_other_tokens(masked):
    task, batch = masked
    scored = batch.weights > 0
    np.testing.assert_array_equal(batch.targets, windows(task))
    np.testing.assert_array_equal(batch.inputs[~scored], batch.targets[~scored])
    np.testing.assert_array_equal(scored.sum(-1), round(0.15 * 41))
    assert scored.any(0).all()  # every place may be chosen


def test_scored_inputs_are_masked_or_random_in_the_given_shares(files):
    task = MaskedTokens(text=text(files), rate=0.5, batch_size=257, evaluation_batches=2)
    batch = jax.device_get(task.load().batch(jax.random.key(1), 0))
    scored = batch.weights > 0
    read, true = batch.inputs[scored], batch.targets[scored]
    count = read.size
    for share, expected in ((read == 256, 0.8), (read == true, 0.1 + 0.1 / 256), ((read != true) & (read < 256), 0.1)):
        assert share.mean() == pytest.approx(expected, abs=5 * np.sqrt(expected * (1 - expected) / count))
    others = read[(read != true) & (read < 256)]
    assert others.min() < 16
    assert others.max() > 240  # any token of the vocabulary, not of the text


def test_evaluation_masks_are_fixed_and_differ_between_rows(masked):
    task, _ = masked
    source = task.load()
    one, again = source.evaluation(), source.evaluation()
    np.testing.assert_array_equal(one.inputs, again.inputs)
    patterns = np.asarray(one.weights).reshape(-1, 41)
    assert len(np.unique(patterns, axis=0)) > 0.99 * len(patterns)


def together(source, said):
    """Return the tokens of the window, each with whether it was removed, from source and targets."""
    spans, now = {}, []
    for token in said[:-1].tolist():
        if token > 257:
            now = spans[token] = []
        else:
            now.append((token, True))
    assert all(spans.values())
    assert [token for token in source.tolist() if token > 257] == list(spans)
    return [token for part in source.tolist() for token in spans.get(part, [(part, False)])]


def test_window_can_be_reconstructed_from_source_and_targets(cut):
    task, batch = cut
    assert (task.removed_tokens, task.spans, task.start, task.end, task.vocabulary) == (10, 3, 256, 257, 261)
    for window, source, said, read in zip(windows(task), batch.source, batch.targets, batch.inputs, strict=True):
        assert read.tolist() == [256, *said[:-1]]
        assert said[-1] == 257
        assert sorted(set(said.tolist()) - set(range(258))) == [258, 259, 260]
        assert [token for token, _ in together(source, said)] == window.tolist()
    assert (batch.weights == 1).all()


def test_spans_are_uniform_over_all_possible_lists_of_lengths(files):
    task = SpanCorruption(text=text(files, length=7), density=0.43, mean_span=1.5)
    assert (task.removed_tokens, task.spans) == (3, 2)
    keys = jax.random.split(jax.random.key(0), 6000)
    places = np.asarray(jax.jit(jax.vmap(task.draw_spans))(keys))
    found, counts = np.unique(places, axis=0, return_counts=True)
    # 4 tokens stay in 2 stretches (3 ways), 3 go in 2 (2 ways)
    assert len(found) == 6
    assert not found[:, 0].any()
    assert found[:, -1].all()
    assert np.abs(counts / 6000 - 1 / 6).max() < 0.025


def test_default_sizes_are_those_of_the_paper():
    task = SpanCorruption(text=TextFiles(path="", length=512))
    assert (task.removed_tokens, task.spans) == (77, 26)  # 512 tokens: 77 cut, in 26 spans
    assert (task.source_length, task.sequence_length) == (512 - 77 + 26, 77 + 26 + 1)


def plain_losses(task):
    """Return unigram and bigram losses from training counts, as functions of one and of two tokens."""
    train = task.text.tokens()[0].tolist()
    one, two, first = Counter(train), Counter(itertools.pairwise(train)), Counter(train[:-1])
    return (
        lambda t: -np.log((one[t] + 1) / (len(train) + 256)),
        lambda b, t: -np.log((two[b, t] + 1) / (first[b] + 256)),
    )


def test_references_of_masked_tokens_equal_a_plain_loop(files):
    task = MaskedTokens(text=text(files, length=13), rate=0.4, batch_size=3, evaluation_batches=2)
    unigram, bigram = plain_losses(task)
    found = jax.device_get(task.load().evaluation())
    first, second = [], []
    for targets, weights in zip(found.targets.reshape(-1, 13), found.weights.reshape(-1, 13), strict=True):
        for i in np.nonzero(weights)[0]:
            first.append(unigram(targets[i]))
            second.append(unigram(targets[i]) if i == 0 or weights[i - 1] else bigram(targets[i - 1], targets[i]))
    assert task.references() == pytest.approx({"unigram": np.mean(first), "bigram": np.mean(second)})


def test_references_of_spans_equal_a_plain_loop(files):
    task = SpanCorruption(text=text(files, length=13), density=0.4, mean_span=2, batch_size=3, evaluation_batches=2)
    unigram, bigram = plain_losses(task)
    found = jax.device_get(task.load().evaluation())
    windows = np.asarray(task.text.replace(batch_size=3, evaluation_batches=2).load().evaluation().inputs)
    said = found.targets.reshape(6, -1)
    first = second = 0.0
    for window, source, row in zip(windows.reshape(6, 13), found.source.reshape(6, -1), said, strict=True):
        whole = together(source, row)
        assert [token for token, _ in whole] == window.tolist()
        for i in (i for i, (_, cut) in enumerate(whole) if cut):
            first += unigram(window[i])
            second += bigram(window[i - 1], window[i])
    assert task.references() == pytest.approx({"unigram": first / said.size, "bigram": second / said.size})


def answers(run, source):
    batch = source.batch(jax.random.key(0), 0)
    params = model.init(jax.random.key(0), run.model)
    return model.apply(params, run.model, batch.inputs, **batch.arguments), batch.targets


@pytest.mark.parametrize("task", [MaskedTokens, SpanCorruption])
def test_models_of_another_family_are_refused(files, task):
    task = task(text=text(files, length=13), batch_size=3)
    config = ModelConfig(
        vocabulary=task.vocabulary, layers=1, d_model=12, attention=Attention(heads=3), feed_forward=Dense(d_ff=7)
    )
    encoder, both = config.replace(mask_pattern="bidirectional"), config.with_encoder()
    right, wrong = (encoder, both) if isinstance(task, MaskedTokens) else (both, config)
    output, targets = jax.eval_shape(answers, Run(model=right, task=task), task.load())
    assert output.shape == (*targets.shape, task.vocabulary)
    with pytest.raises(UserError, match=r"model\.encoder is"):
        Run(model=wrong, task=task)
    with pytest.raises(UserError, match=r"model\.vocabulary is 256; expected at least"):
        Run(model=right.replace(vocabulary=256), task=task)


@pytest.mark.parametrize("length", [2, 3])
def test_shortest_windows_have_one_span(files, length):
    task = SpanCorruption(text=text(files, length=length), batch_size=5)
    batch = jax.device_get(task.load().batch(jax.random.key(0), 0))
    assert (task.removed_tokens, task.spans) == (1, 1)
    assert (batch.source < 256).sum(-1).tolist() == [length - 1] * 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda t: MaskedTokens(text=t, rate=0.01),
            "rate is 0.01, which chooses 0 places of a window of 41 tokens; expected at",
        ),
        (lambda t: MaskedTokens(text=t, masked=0.8, random=0.3), "masked and random are 0.8 and 0.3; expected at mo"),
        (lambda t: MaskedTokens(text=t, rate=0), "MaskedTokens.rate is 0.0; expected a number above 0"),
        (
            lambda t: MaskedTokens(text=t.replace(batch_size=3)),
            "text.batch_size is 3; set MaskedTokens.batch_size instead",
        ),
        (lambda t: SpanCorruption(text=t.replace(length=1)), "text.length is 1; expected at least 2"),
        (lambda t: SpanCorruption(text=t, density=1), "SpanCorruption.density is 1.0; expected a number below 1"),
        (lambda t: SpanCorruption(text=TokenFiles(path="", pack="documents")), "text.pack is 'documents'; expected"),
    ],
)
def test_invalid_settings_are_refused(files, make, message):
    with pytest.raises(UserError, match=message):
        make(text(files))
