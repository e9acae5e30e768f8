"""Diagnostics equal float64 loops over a training step, for every model family and layout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BASE, LENGTHS, MODELS, SOURCE_LENGTHS, batch_of, case, in_layout, run_of, state_of

from flaxformer import model
from flaxformer.core.params import path_name
from flaxformer.diagnostics import diagnose
from flaxformer.diagnostics.activations import magnitude, measure_activations
from flaxformer.training import train_step

close = functools.partial(np.testing.assert_allclose, rtol=2e-5)


step = jax.jit(train_step)


@functools.cache
def diagnosed(name):
    """Return a case, its diagnostics, and the result of the training step."""
    run, state, batch = case(name)
    return run, state, batch, diagnose(state, run, batch), step(state, run, batch)


def gradient_of(run, after):
    """Return the gradient from Adam's first moment after the first step, which is (1 − β1) times the gradient."""
    return jax.tree.map(lambda moment: np.float64(moment) / (1 - run.optimizer.beta1), after.optimizer[0].mu)


def loop_norms(tree):
    """Return {place: norms per layer} for every weight and every beginning of its path."""
    squares = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        parts, layer = path_name(path).split("/"), 0
        own = sum(float(entry) ** 2 for entry in np.asarray(x, np.float64).ravel())
        numbers = [part for part in parts if part.isdigit()]
        if numbers:
            layer = int(numbers[0])
            parts.remove(numbers[0])
        for end in range(1, len(parts) + 1):
            place = squares.setdefault("/".join(parts[:end]), {})
            place[layer] = place.get(layer, 0.0) + own
    squares.pop("encoder", None)
    return {place: np.sqrt([layers[i] for i in range(len(layers))]) for place, layers in squares.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoder", "recurrent", pytest.param("encoder-decoder", marks=pytest.mark.slow)])
def test_norms_of_gradient_weights_and_update_equal_float64_loops(name):
    run, before, _, found, (after, metrics) = diagnosed(name)
    change = jax.tree.map(lambda new, old: np.float64(new) - np.float64(old), after.params, before.params)
    wanted = {"gradient_norm": gradient_of(run, after), "parameter_norm": before.params, "update_norm": change}
    for quantity, tree in wanted.items():
        norms, expected = getattr(found, quantity), loop_norms(tree)
        untrained = norms.keys() - expected.keys()  # Adam has no moments of running statistics
        assert expected.keys() <= norms.keys()
        assert all("running" in place and quantity == "gradient_norm" for place in untrained)
        assert not any(np.any(norms[place]) for place in untrained)
        for place, numbers in expected.items():
            close(np.atleast_1d(norms[place]), numbers, rtol=2e-4, atol=1e-7, err_msg=f"{quantity} {place}")
    close(found.loss, metrics["loss"])


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "decoder" else pytest.mark.slow) for name in MODELS]
)
def test_squared_gradient_norms_of_modules_add_up_to_that_of_the_step(name):
    *_, found, (_, metrics) = diagnosed(name)
    outermost = [x for place, x in found.gradient_norm.items() if "/" not in place.removeprefix("encoder/")]
    close(np.sqrt(sum(np.square(x).sum() for x in outermost)), metrics["gradient_norm"])


@pytest.mark.parametrize("name", [pytest.param("encoder-decoder", marks=pytest.mark.slow), "recurrent"])
def test_diagnostics_are_equal_in_both_layouts(name):
    run, state, batch, unrolled, _ = diagnosed(name)
    scanned = diagnose(in_layout(state, run, "scanned"), run, batch)
    assert jax.tree.structure(scanned) == jax.tree.structure(unrolled)
    jax.tree.map(lambda x, y: close(x, y, rtol=1e-4, atol=1e-6), scanned, unrolled)


def root_mean_square(x, lengths):
    """Return the root mean square over the first lengths[b] tokens of each sequence b."""
    numbers = [
        float(entry) for row, n in zip(np.asarray(x, np.float64), lengths, strict=True) for entry in row[:n].flat
    ]
    return np.sqrt(sum(number**2 for number in numbers) / len(numbers))


@pytest.mark.long
def test_activations_and_attention_equal_float64_loops_over_real_tokens():
    run, state, batch, found, _ = diagnosed("encoder-decoder")
    see = jax.jit(model.apply_with_intermediates)
    output, kept = see(state.params, run.model, batch.inputs, **batch.arguments)
    expected = {"output": root_mean_square(output, LENGTHS)}
    for prefix, own, lengths in (("", kept, LENGTHS), ("encoder/", kept.encoder, SOURCE_LENGTHS)):
        expected[f"{prefix}embedded"] = root_mean_square(own.embedded, lengths)
        expected[f"{prefix}final"] = root_mean_square(own.final, lengths)
        for branch in ("attention", "cross_attention", "feed_forward"):
            for stage in ("update", "stream") if getattr(own.blocks[0], branch) is not None else ():
                xs = [getattr(getattr(block, branch), stage) for block in own.blocks]
                expected[f"{prefix}blocks/{branch}/{stage}"] = [root_mean_square(x, lengths) for x in xs]
    assert found.rms.keys() == expected.keys()
    for place, numbers in expected.items():
        close(found.rms[place], numbers, err_msg=place)
    assert found.rms["blocks/cross_attention/update"].shape == (2,)

    assert found.attention.keys() == {"blocks/attention", "blocks/cross_attention", "encoder/blocks/attention"}
    sees = {
        "blocks/attention": lambda b, t, s: s <= t and s < LENGTHS[b],
        "blocks/cross_attention": lambda b, t, s: s < SOURCE_LENGTHS[b],
        "encoder/blocks/attention": lambda b, t, s: s < SOURCE_LENGTHS[b],
    }
    sizes = measure_activations(kept, batch, magnitude, ("logits",))
    for place, allowed in sees.items():
        own, params = (kept.encoder, state.params.encoder) if place.startswith("encoder") else (kept, state.params)
        lengths = SOURCE_LENGTHS if place.startswith("encoder") else LENGTHS
        branch = place.split("/")[-1]
        for layer, (block, weights) in enumerate(zip(own.blocks, params.blocks, strict=True)):
            entering = np.asarray(getattr(block, branch).input, np.float64)
            read = np.asarray(kept.encoder.final, np.float64) if branch == "cross_attention" else entering
            entropies, logits = loop_attention(getattr(weights, branch), entering, read, lengths, allowed)
            statistics = jax.tree.map(lambda x, layer=layer: x[layer], found.attention[place])
            close(statistics.entropy, np.mean(entropies, 1), rtol=1e-4, err_msg=place)
            close(statistics.largest_logit, np.abs(logits).max(1), rtol=1e-4, err_msg=place)
            close(statistics.logit_variance, np.var(logits, 1), rtol=1e-3, err_msg=place)
            close(sizes[f"{place}/logits"][layer], np.abs(logits).mean(), rtol=1e-4, err_msg=place)


def loop_attention(params, x, memory, lengths, allowed):
    """Return entropies [N, queries] and logits [N, pairs] of real queries, computed one by one from the weights."""
    w = {name: np.float64(getattr(params, name)) for name in ("query", "key")}
    entropies, logits = [], []
    for head in range(w["query"].shape[1]):
        for b in range(len(x)):
            for t in range(lengths[b]):
                query = x[b, t] @ w["query"][:, head]
                keys = [s for s in range(memory.shape[1]) if allowed(b, t, s)]
                row = [query @ (memory[b, s] @ w["key"][:, head]) for s in keys]
                row = np.array(row) / np.sqrt(len(query))
                weights = np.exp(row) / np.exp(row).sum()
                entropies.append(-(weights * np.log(weights)).sum())
                logits.extend(row)
    heads = w["query"].shape[1]
    return np.reshape(entropies, (heads, -1)), np.reshape(logits, (heads, -1))


def test_entropy_of_uniform_attention_is_the_logarithm_of_the_number_of_keys():
    run, state, batch, *_ = diagnosed("decoder")
    blocks = tuple(
        block.replace(attention=block.attention.replace(query=jnp.zeros_like(block.attention.query)))
        for block in state.params.blocks
    )
    found = diagnose(state.replace(params=state.params.replace(blocks=blocks)), run, batch).attention
    entropy = np.mean([np.log(t + 1) for length in LENGTHS for t in range(length)])
    close(found["blocks/attention"].entropy, np.full((1, 2), entropy))
    for name in ("largest_logit", "logit_variance", "head_diversity"):
        close(getattr(found["blocks/attention"], name), 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_diagnostics_in_a_group_equal_those_of_single_runs(size):
    run = run_of(BASE.replace(layers=1, dropout=0.2))
    state, batch = state_of(run), batch_of(run)
    runs = [
        run.replace(seed=seed, optimizer=run.optimizer.replace(learning_rate=rate))
        for seed, rate in ((0, 1e-2), (5, 3e-3))
    ]
    states = [state, state.replace(params=jax.tree.map(lambda x: 1.5 * x, state.params))]
    single = [diagnose(*pair, batch) for pair in zip(states, runs, strict=True)]
    assert float(single[0].update_norm["head"]) > 2 * float(single[1].update_norm["head"])
    replicas = jax.tree.map(lambda *leaves: jnp.stack(leaves), *zip(states, runs, strict=True))
    mapped = jax.jit(lambda pairs: jax.lax.map(lambda pair: diagnose(*pair, batch), pairs, batch_size=size))(replicas)
    jax.tree.map(lambda x, *own: close(x, jnp.stack(own), rtol=2e-4, atol=1e-6), mapped, *single)


def test_update_norm_is_0_after_divergence():
    run, state, batch, found, _ = diagnosed("decoder")
    frozen = diagnose(state.replace(diverged_at=jnp.int32(0)), run, batch)
    assert not any(np.any(x) for x in frozen.update_norm.values())
    jax.tree.map(np.testing.assert_array_equal, frozen.gradient_norm, found.gradient_norm)


def test_model_without_layers_has_diagnostics_outside_the_blocks_alone():
    run = run_of(MODELS["decoder"].replace(layers=0))
    found = jax.eval_shape(diagnose, state_of(run), run, batch_of(run))
    assert found.attention == {}
    assert found.rms.keys() == {"embedded", "final", "output"}
    assert found.gradient_norm.keys() >= {"embedding", "final_norm", "head"}
    assert found.parameter_norm["head"].shape == ()
