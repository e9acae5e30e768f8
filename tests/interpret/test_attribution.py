"""Direct logit attribution, logit lens, head scores and patching against independent NumPy code in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid import BASE, encoder_decoder, model_and_tokens, random_weights, sparse_grid

from flaxformer.components import (
    POST,
    PRE,
    RES_POST_NORM,
    SANDWICH,
    Attention,
    BatchNorm,
    DeepNorm,
    LanguageModel,
    LayerScale,
    LearnedPositions,
    Residual,
    ReZero,
    RMSNorm,
)
from flaxformer.interpret import (
    ablate,
    direct_logit_attribution,
    head_importance,
    head_scores,
    lens_scores,
    logit_lens,
    mean_activations,
    name_scalars,
    patch,
    patching_effect,
    prefix_matching,
    previous_token,
    repeated_tokens,
    scores,
)
from flaxformer.model import activations_at, apply
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError
from flaxformer.tasks import Induction
from flaxformer.training import Run, evaluate

B, T, V, D, N, H, F = 2, 7, 13, 12, 3, 4, 17
PLAIN = BASE.replace(positions=LearnedPositions(max_length=11))


def close(x, y, tolerance=1e-5):
    """True if two arrays agree up to the rounding of their largest entry."""
    return np.allclose(x, y, atol=tolerance * (1 + np.abs(np.asarray(y)).max()), rtol=0)


class Loops:
    """A pre-norm Transformer of PLAIN's kind for one sequence in float64, written with loops over heads and queries."""

    def __init__(self, params, removed=()):
        self.p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
        self.removed = removed
        """Layers and heads whose values before the output matrix are 0."""

    @staticmethod
    def norm(x, affine):
        centred = x - x.mean(-1, keepdims=True)
        scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred * scale * affine.gain + affine.bias, scale

    def run(self, tokens):
        """Return the logits, the stream after each block, the attention weights, and what each part writes."""
        p = self.p
        x = p.embedding.tokens[tokens] + p.positions.table[: len(tokens)]
        parts, streams, maps = {"embedded": x}, [x], []
        for layer, block in enumerate(p.blocks):
            read, _ = self.norm(x, block.attention_connection.pre)
            weights = block.attention
            own = []
            for n in range(N):
                q, k, v = (read @ w[:, n] + b[n] for w, b in (
                    (weights.query, weights.query_bias), (weights.key, weights.key_bias),
                    (weights.value, weights.value_bias)))  # fmt: skip
                mixed, rows = np.zeros((len(tokens), H)), np.zeros((len(tokens), len(tokens)))
                for t in range(len(tokens)):
                    z = np.array([q[t] @ k[s] / np.sqrt(H) for s in range(t + 1)])
                    rows[t, : t + 1] = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
                    mixed[t] = sum(rows[t, s] * v[s] for s in range(t + 1))
                own.append(rows)
                mixed = 0 * mixed if (layer, n) in self.removed else mixed
                parts[f"blocks/{layer}/attention/heads/{n}"] = mixed @ weights.out[n]
            parts[f"blocks/{layer}/attention/bias"] = np.broadcast_to(weights.out_bias, x.shape)
            maps.append(np.stack(own))
            x = x + sum(y for path, y in parts.items() if path.startswith(f"blocks/{layer}/attention"))
            read, _ = self.norm(x, block.feed_forward_connection.pre)
            hidden = np.maximum(read @ block.feed_forward.up + block.feed_forward.up_bias, 0)
            parts[f"blocks/{layer}/feed_forward"] = hidden @ block.feed_forward.down + block.feed_forward.down_bias
            x = x + parts[f"blocks/{layer}/feed_forward"]
            streams.append(x)
        final, _ = self.norm(x, p.final_norm)
        return final @ p.head.matrix, streams, maps, parts


@pytest.fixture(scope="module")
def model():
    params, tokens, _ = model_and_tokens(PLAIN)
    return params, tokens


def test_the_loops_compute_the_model(model):
    params, tokens = model
    for row, logits in zip(np.asarray(tokens), apply(params, PLAIN, tokens), strict=True):
        assert close(logits, Loops(params).run(row)[0])


def test_attribution_is_the_part_of_each_head_and_branch_in_the_logit(model):
    """For every part, the product of its vector, centred and scaled by the norm of the whole, with the column."""
    params, tokens = model
    targets, against = (tokens + 5) % V, (tokens + 2) % V
    found = direct_logit_attribution(params, PLAIN, tokens, targets, against=against)
    for row in range(B):
        loops = Loops(params)
        _, streams, _, parts = loops.run(np.asarray(tokens[row]))
        _, scale = loops.norm(streams[-1], loops.p.final_norm)
        column = loops.p.head.matrix.T[targets[row]] - loops.p.head.matrix.T[against[row]]
        for path, vector in parts.items():
            centred = vector - vector.mean(-1, keepdims=True)
            assert close(found[path][row], (centred * scale * loops.p.final_norm.gain * column).sum(-1)), path
        assert close(found["final_norm/bias"][row], column @ loops.p.final_norm.bias)
    assert found.keys() == {*parts, "final_norm/bias"}


LINEAR = {
    "pre": {"norm": PRE},
    "rms": {"norm_kind": RMSNorm()},
    "rezero": {"residual": ReZero()},
    "layer scale": {"residual": LayerScale()},
    "deep norm": {"residual": DeepNorm()},
    "parallel": {"parallel": True},
    "no skip": {"attention_residual": False},
    "tied": {"head": LanguageModel(tied=True, bias=True, scale_exponent=0.5)},
    "grouped": {"attention": Attention(heads=3, key_value_heads=1)},
    "full values": {"attention": Attention(heads=3, value_form="full")},
    "shared": {"layers": 4, "distinct_blocks": 2},
    "empty": {"layers": 0},
}


DEFAULT = {
    "rms": "unrolled",
    "deep norm": "scanned",
    "no skip": "unrolled",
    "tied": "unrolled",
    "full values": "unrolled",
    "shared": "scanned",
    "empty": "unrolled",
}
"""Cases that run by default, with the layout of the layers."""


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "by_head", "layout"),
    [
        pytest.param(name, by_head, layout, marks=() if by_head and layout == DEFAULT.get(name) else pytest.mark.slow)
        for name in LINEAR
        for by_head in (True, False)
        for layout in ("unrolled", "scanned")
    ],
)
def test_attributions_add_up_to_the_logit(name, by_head, layout):
    config = PLAIN.replace(**LINEAR[name])
    params, tokens, _ = model_and_tokens(config, layout)
    targets, against = (tokens + 5) % V, (tokens + 2) % V
    output = apply(params, config, tokens)
    logit, other = (jnp.take_along_axis(output, one[..., None], -1)[..., 0] for one in (targets, against))
    found = direct_logit_attribution(params, config, tokens, targets, by_head=by_head)
    assert close(sum(found.values()), logit)
    assert ("blocks/0/attention/heads/2" in found) == (by_head and config.layers > 0)
    found = direct_logit_attribution(params, config, tokens, targets, against=against, by_head=by_head)
    assert close(sum(found.values()), logit - other)


@pytest.mark.slow
def test_attributions_of_a_decoder_with_an_encoder_add_up():
    config = encoder_decoder(PLAIN)
    params, tokens, given = model_and_tokens(config)
    found = direct_logit_attribution(params, config, tokens, tokens, **given)
    assert "blocks/1/cross_attention/heads/0" in found
    logit = jnp.take_along_axis(apply(params, config, tokens, **given), tokens[..., None], -1)[..., 0]
    assert close(sum(found.values()), logit)


class OtherRule(Residual):
    """x + f(x)², which is not linear."""

    def join(self, weights, x, update, context):
        return x + update**2


REFUSED = {
    "post": ({"norm": POST}, True, "norm.post_residual is given, which normalises the sum; expected a placement such"),
    "sandwich by head": ({"norm": SANDWICH}, True, "norm.post_branch is given.*expected by_head=False"),
    "batch": ({"norm_kind": BatchNorm()}, True, "the final norm is BatchNorm.*expected LayerNorm or RMSNorm"),
    "transform": ({"head": LanguageModel(transform="gelu")}, True, "head.*expected a LanguageModel without transform"),
    "cap": ({"head": LanguageModel(logit_cap=3.0)}, False, "head.*expected a LanguageModel without transform"),
    "rule": ({"residual": OtherRule()}, False, "residual of block 0 is OtherRule; expected one of Residual, ReZero"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_logit_that_is_no_sum_is_refused(name):
    changes, by_head, message = REFUSED[name]
    config = PLAIN.replace(**changes)
    params, tokens, _ = model_and_tokens(config)
    with pytest.raises(UserError, match=f"direct logit attribution is not defined: .*{message}"):
        direct_logit_attribution(params, config, tokens, tokens, by_head=by_head)


@pytest.mark.parametrize("placement", [SANDWICH, pytest.param(RES_POST_NORM, marks=pytest.mark.slow)])
def test_with_a_norm_after_the_branch_branches_add_up(placement):
    config = PLAIN.replace(norm=placement)
    params, tokens, _ = model_and_tokens(config)
    found = direct_logit_attribution(params, config, tokens, tokens, by_head=False)
    logit = jnp.take_along_axis(apply(params, config, tokens), tokens[..., None], -1)[..., 0]
    assert close(sum(found.values()), logit)


def test_the_lens_is_the_head_of_the_stream_after_each_block(model):
    params, tokens = model
    found = logit_lens(params, PLAIN, tokens)
    assert list(found) == [0, 1, 2]
    for row in range(B):
        loops = Loops(params)
        _, streams, _, _ = loops.run(np.asarray(tokens[row]))
        for depth, stream in enumerate(streams):
            assert close(found[depth][row], loops.norm(stream, loops.p.final_norm)[0] @ loops.p.head.matrix), depth


@sparse_grid
def test_the_lens_of_all_blocks_is_the_output(config):
    params, tokens, given = model_and_tokens(config)
    assert close(
        logit_lens(params, config, tokens, **given)[config.layers], apply(params, config, tokens, **given), 1e-4
    )


RUN = Run(
    model=PLAIN.replace(vocabulary=V, norm=PRE),
    task=Induction(symbols=V, length=T, batch_size=5, evaluation_batches=3),
)


@pytest.fixture(scope="module")
def evaluated():
    return random_weights(RUN.model), RUN.task.load().evaluation()


def loss_of(params, batches, removed=()):
    """Mean cross-entropy of the last token by the loops."""
    found = []
    for tokens, target in zip(batches.inputs.reshape(-1, T), batches.targets.reshape(-1, T)[:, -1], strict=True):
        z = Loops(params, removed).run(np.asarray(tokens))[0][-1]
        found.append(np.log(np.exp(z - z.max()).sum()) + z.max() - z[target])
    return np.mean(found)


def test_scores_without_an_edit_are_those_of_an_evaluation(evaluated):
    params, batches = evaluated
    found, want = scores(params, RUN, batches), evaluate(params, RUN, RUN.task.load())
    np.testing.assert_allclose(found["loss"], want["validation_loss"], rtol=1e-6)
    np.testing.assert_allclose(found["accuracy"], want["validation_accuracy"], rtol=1e-6)
    np.testing.assert_allclose(found["loss"], loss_of(params, batches), rtol=1e-5)


def test_importance_is_the_increase_of_the_loss_without_each_head(evaluated):
    params, batches = evaluated
    found = head_importance(params, RUN, batches, replaced_by="zero")
    before = loss_of(params, batches)
    assert list(found) == ["blocks/0/attention/heads", "blocks/1/attention/heads"]
    for layer, head in ((0, 0), (0, 2), (1, 1)):
        want = loss_of(params, batches, [(layer, head)]) - before
        np.testing.assert_allclose(found[f"blocks/{layer}/attention/heads"][head], want, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["scanned", pytest.param("unrolled", marks=pytest.mark.slow)])
def test_importance_by_means_is_that_of_the_same_edit(evaluated, layout):
    params, batches = evaluated
    params = with_layout(params, layout)
    found = head_importance(params, RUN, batches)
    average = mean_activations(params, RUN, batches, "*attention/heads")
    before = scores(params, RUN, batches)["loss"]
    for path in found:
        for head in (0, N - 1):
            after = scores(params, RUN, batches, patch({path: average[path]}, heads=[head]))["loss"]
            np.testing.assert_allclose(found[path][head], after - before, atol=1e-5)
    with pytest.raises(UserError, match="replaced_by is 'noise'; expected mean or zero"):
        head_importance(params, RUN, batches, replaced_by="noise")


def test_an_edit_may_depend_on_the_batch(evaluated):
    """A function of the batch that shifts the embeddings by its first token, as for each batch alone."""
    params, batches = evaluated

    def edit(batch):
        return {"embedded": lambda x: x + batch.inputs[0, 0]}

    whole = scores(params, RUN, batches, edit)["loss"]
    parts = [jax.tree.map(lambda x, i=i: x[i : i + 1], batches) for i in range(3)]
    single = [scores(params, RUN, one, edit(jax.tree.map(lambda x: x[0], one)))["loss"] for one in parts]
    np.testing.assert_allclose(whole, np.mean(single), rtol=1e-5)


def test_scores_of_the_lens_end_with_those_of_the_model(evaluated):
    params, batches = evaluated
    found = lens_scores(params, RUN, batches)
    np.testing.assert_allclose(found[2]["loss"], scores(params, RUN, batches)["loss"], rtol=1e-5)
    assert name_scalars("lens", found).keys() == {f"lens/{name}/{n}" for n in range(3) for name in ("loss", "accuracy")}


def test_head_scores_by_loops(model):
    params, _ = model
    tokens = repeated_tokens(jax.random.key(5), B, T, V)
    np.testing.assert_array_equal(tokens[:, 4:], tokens[:, :3])
    matching = head_scores(params, PLAIN, tokens, prefix_matching)
    before = head_scores(params, PLAIN, tokens, previous_token)
    maps = [Loops(params).run(np.asarray(row))[2] for row in tokens]
    for layer in range(2):
        for head in range(N):
            own, last, previous = [], [], []
            for row, found in zip(np.asarray(tokens), maps, strict=True):
                weights = found[layer][head]
                previous += [weights[t, t - 1] for t in range(1, T)]
                for t in range(T):
                    on = [s for s in range(1, t + 1) if row[s - 1] == row[t]]
                    own += [sum(weights[t, s] for s in on)] if on else []
                    last += [sum(weights[t, s] for s in on)] if on and t == T - 1 else []
            path = f"blocks/{layer}/attention/weights"
            np.testing.assert_allclose(matching[path][head], np.mean(own), rtol=1e-5)
            np.testing.assert_allclose(before[path][head], np.mean(previous), rtol=1e-5)
            is_last = jnp.arange(T)[None] == T - 1
            alone = head_scores(params, PLAIN, tokens, lambda a, x, q=is_last: prefix_matching(a, x, q))
            np.testing.assert_allclose(alone[path][head], np.mean(last), rtol=1e-5)


def test_a_perfect_induction_head_has_the_score_one():
    tokens = repeated_tokens(jax.random.key(0), 3, 10, 1000)
    weights = jnp.zeros((3, 1, 10, 10)).at[:, :, jnp.arange(5, 10), jnp.arange(1, 6)].set(1)
    np.testing.assert_allclose(prefix_matching(weights, tokens), [1.0])
    np.testing.assert_allclose(previous_token(weights, tokens), [0.0])


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("per", ["all", "positions"])
def test_nothing_can_be_restored_where_both_inputs_have_the_same_metric(model, per):
    """(m − m₀) / 0 is undefined, whatever the numerator: not ±∞, which a mean or a maximum would take."""
    params, tokens = model
    other = tokens.at[:, 2].set((tokens[:, 2] + 1) % V)
    for metric in (lambda logits: logits.sum() * 0 + 3.0, lambda logits: jnp.where(logits[0, 0, 0] > 1e9, 1.0, 2.0)):
        found = patching_effect(params, PLAIN, tokens, other, metric, "embedded", per=per)
        assert np.isnan(found["embedded"]).all()

    def is_mixed(logits):
        """1 for the input with one patched position, and 0 for both whole ones."""
        whole = [apply(params, PLAIN, one)[:, -1] for one in (tokens, other)]
        return jnp.where(jnp.any(jnp.stack([(logits[:, -1] == one).all() for one in whole])), 0.0, 1.0)

    found = patching_effect(params, PLAIN, tokens, other, is_mixed, "embedded", per=per)
    assert np.isnan(found["embedded"]).all()


def test_patching_restores_what_an_activation_carries(model):
    params, tokens = model
    other = tokens.at[:, 2].set((tokens[:, 2] + 1) % V)

    def metric(logits):
        return logits[:, -1, 3].mean()

    ends = ["embedded", "blocks/1/feed_forward/stream"]
    found = patching_effect(params, PLAIN, tokens, other, metric, ends)
    np.testing.assert_allclose(list(found.values()), 1.0, rtol=1e-4)
    each = patching_effect(params, PLAIN, tokens, other, metric, ends, per="positions")
    np.testing.assert_allclose(each["embedded"], np.arange(T) == 2, atol=1e-4)
    np.testing.assert_allclose(each["blocks/1/feed_forward/stream"], np.arange(T) == T - 1, atol=1e-4)
    heads = patching_effect(params, PLAIN, tokens, other, metric, "blocks/*/attention/heads", per="heads")
    clean = metric(apply(params, PLAIN, tokens)), metric(apply(params, PLAIN, other))
    source = activations_at(params, PLAIN, tokens, "blocks/1/attention/heads")
    after = metric(apply(params, PLAIN, other, edit=patch(source, heads=[1])))
    np.testing.assert_allclose(
        heads["blocks/1/attention/heads"][1], (after - clean[1]) / (clean[0] - clean[1]), rtol=1e-3, atol=1e-5
    )
    with pytest.raises(UserError, match="per is \"heads\" for 'final', which has none"):
        patching_effect(params, PLAIN, tokens, other, metric, "final", per="heads")
    with pytest.raises(UserError, match=r"clean has shape \[2, 7\] and corrupted \[2, 6\]"):
        patching_effect(params, PLAIN, tokens, other[:, :6], metric, "final")


def test_zero_ablation_of_a_head_is_the_model_without_it(model):
    params, tokens = model
    edited = apply(params, PLAIN, tokens, edit=ablate("blocks/0/attention", heads=[1]))
    for row, logits in zip(np.asarray(tokens), edited, strict=True):
        assert close(logits, Loops(params, [(0, 1)]).run(row)[0])
