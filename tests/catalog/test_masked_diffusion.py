"""Masked diffusion: its bound is the entropy for exact conditionals, and its sampler has the joint distribution."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer
from flaxformer import Attention, MaskedTokens, ModelConfig, Run, StandardLibrary, Training
from flaxformer.catalog import MaskedDiffusion
from flaxformer.catalog.masked_diffusion import fill_in
from flaxformer.checkpoint.stopping import Stop
from flaxformer.jobs.train import Job, train
from flaxformer.model import Sampling
from flaxformer.report.job import read_job
from flaxformer.system.errors import UserError

L, V = 3, 3
JOINT = np.random.default_rng(0).dirichlet(np.full(V**L, 0.3)).reshape((V,) * L)
TASK = MaskedDiffusion(text=StandardLibrary(length=8), batch_size=4, evaluation_batches=2)


def conditionals(tokens):
    """Log-probabilities [L, V + 1] of each token, given those that are not masked (V is the mask)."""
    agrees = np.ones((V,) * L, bool)
    for place, token in enumerate(tokens):
        if token != V:
            agrees &= np.indices((V,) * L)[place] == token
    possible = JOINT * agrees
    table = np.full((L, V + 1), 0.0)
    for place in range(L):
        total = possible.sum(tuple(axis for axis in range(L) if axis != place))
        table[place, :V] = np.log(np.maximum(total / total.sum(), 1e-30))
    return table


TABLE = np.array([conditionals(tokens) for tokens in itertools.product(range(V + 1), repeat=L)])


def logits_of(tokens):
    number = (tokens * jnp.array([(V + 1) ** 2, V + 1, 1])).sum(-1)
    return jnp.asarray(TABLE, jnp.float32)[number]


def test_the_expected_loss_of_exact_conditionals_is_the_entropy():
    entropy, bound = -(JOINT * np.log(JOINT)).sum(), 0.0
    for sequence in itertools.product(range(V), repeat=L):
        for count in range(1, L + 1):
            subsets = list(itertools.combinations(range(L), count))
            for masked in subsets:
                tokens = [V if place in masked else token for place, token in enumerate(sequence)]
                losses = [-conditionals(tokens)[place, sequence[place]] for place in masked]
                # weights L / count, as of the task; a sum over tokens
                bound += JOINT[sequence] / L / len(subsets) * L / count * sum(losses)
    assert bound == pytest.approx(entropy, rel=1e-9)


def test_each_window_has_a_uniform_number_of_masked_tokens_and_weights_that_sum_to_its_length():
    window = jnp.arange(L)
    batch = jax.vmap(lambda key: TASK.corrupt(key, window))(jax.random.split(jax.random.key(0), 6000))
    masked = np.asarray(batch.inputs) == TASK.mask
    np.testing.assert_array_equal(masked, np.asarray(batch.weights) > 0)
    np.testing.assert_array_equal(np.asarray(batch.inputs)[~masked], np.broadcast_to(window, masked.shape)[~masked])
    np.testing.assert_array_equal(batch.targets, np.broadcast_to(window, masked.shape))
    counts = np.bincount(masked.sum(1), minlength=L + 1)
    assert counts[0] == 0
    assert (abs(counts[1:] - 2000) < 5 * np.sqrt(2000)).all()
    assert (abs(masked[masked.sum(1) == 1].mean(0) - 1 / 3) < 0.06).all()
    np.testing.assert_allclose(np.asarray(batch.weights).sum(1), L, rtol=1e-6)


@pytest.mark.parametrize("certain_first", [False, True])
def test_samples_one_by_one_have_the_joint_distribution(certain_first):
    """In random order, exactly; by certainty, the order depends on the samples, and known tokens stay."""
    start = jnp.full((20_000, L), V).at[:, 0].set(jnp.where(certain_first, 1, V))
    samples = np.asarray(
        jax.jit(lambda key: fill_in(logits_of, start, key, mask=V, passes=L, certain_first=certain_first))(
            jax.random.key(1)
        )
    )
    assert (samples < V).all()
    if certain_first:
        assert (samples[:, 0] == 1).all()
        return
    found = np.zeros((V,) * L)
    np.add.at(found, tuple(samples.T), 1 / len(samples))
    assert (abs(found - JOINT) < 5 * np.sqrt(JOINT * (1 - JOINT) / len(samples)) + 1e-4).all()


def test_passes_fill_in_equal_shares_and_temperature_0_takes_the_most_probable():
    seen = []

    def recorded(tokens):
        jax.debug.callback(lambda t: seen.append(np.asarray(t)), tokens)
        return jnp.tile(jnp.array([0.0, 2.0, 1.0, 5.0]), (*tokens.shape, 1))

    start = jnp.array([[V] * 6, [0, 0, V, V, 0, V]])
    result = np.asarray(fill_in(recorded, start, jax.random.key(0), mask=V, passes=3, temperature=0.0))
    jax.effects_barrier()
    assert [tuple((tokens == V).sum(1)) for tokens in seen] == [(6, 3), (4, 3), (2, 2)]
    np.testing.assert_array_equal(result, [[1] * 6, [0, 0, 1, 1, 0, 1]])


def favours_successors(rows):
    """Logits of a model that expects place mod 5, and above all the mask token, which is never drawn."""
    expected = jnp.arange(rows.shape[-1]) % 5
    logits = 4.0 * jax.nn.one_hot(expected, TASK.vocabulary) + 9.0 * jax.nn.one_hot(TASK.mask, TASK.vocabulary)
    return jnp.broadcast_to(logits, (*rows.shape, TASK.vocabulary))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_k=1)], ids=str)
def test_a_text_is_continued_by_tokens_that_the_model_fills_in(sampling):
    prompt = np.array([[7, 7, 7], [8, 8, 8]])
    complete = jax.jit(lambda key: TASK.complete(favours_successors, prompt, steps=6, sampling=sampling, key=key))
    np.testing.assert_array_equal(complete(jax.random.key(0)), [[3, 4, 0, 1, 2, 3]] * 2)
    one_row = TASK.complete(favours_successors, prompt[0], steps=2, sampling=sampling, key=jax.random.key(0))
    np.testing.assert_array_equal(one_row, [3, 4])


def test_drawn_tokens_have_the_distribution_of_the_logits():
    drawn = TASK.complete(
        favours_successors, np.zeros((400, 1), int), steps=5, sampling=Sampling(temperature=1.0), key=jax.random.key(1)
    )
    share = np.exp(4) / (np.exp(4) + TASK.mask - 1)
    found = (np.asarray(drawn) == [1, 2, 3, 4, 0]).mean()
    assert abs(found - share) < 5 * np.sqrt(share * (1 - share) / 2000)


def test_a_task_that_only_scores_masked_tokens_generates_no_text():
    task = MaskedTokens(text=StandardLibrary(length=8))
    assert TASK.generates
    assert not task.generates
    with pytest.raises(UserError, match="MaskedTokens has no `fill_in`; expected a task whose model generates text"):
        task.complete(favours_successors, np.zeros(3, int), steps=2, sampling=Sampling(), key=jax.random.key(0))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job of masked diffusion, with a sample."""
    output = tmp_path_factory.mktemp("jobs") / "diffusion"
    model = ModelConfig(vocabulary=257, layers=1, d_model=8, attention=Attention(heads=2), mask_pattern="bidirectional")
    run = Run(model=model, task=TASK, training=Training(steps=2, evaluate_every=2))
    list(train(run, Job(output=output, samples=3), Stop()))
    return output


def test_a_job_shows_samples_and_its_model_generates(job):
    *_, sample = read_job(job).of("sample")
    window = TASK.load().evaluation().targets[0, 0, :4]
    assert sample["prompt"] == bytes(np.asarray(window, np.uint8)).decode()
    loaded = flaxformer.load(job)
    text = loaded.generate("abc", temperature=0.8, seed=3)
    assert text.startswith("abc")
    assert text == loaded.generate("abc", temperature=0.8, seed=3) != loaded.generate("abc", temperature=0.8, seed=4)
    tokens = loaded.generate(np.zeros((2, 3), int), tokens=4)
    assert tokens.shape == (2, 4)
    assert (tokens < TASK.mask).all()
    with pytest.raises(UserError, match="tokens is 0; expected at least 1"):
        loaded.generate("abc", tokens=0)
