"""Attention statistics against loops and known values: equal heads, disjoint heads, masks, weights that underflow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BASE, LENGTHS, B, S, T, batch_of, run_of, state_of

from flaxformer.components import Alibi
from flaxformer.core.paths import replace_at
from flaxformer.diagnostics.attention import attention_statistics
from flaxformer.model import Intermediates, apply, apply_with_intermediates
from flaxformer.model.blocks import BlockIntermediates, BranchActivations
from flaxformer.nn.attention import masked_softmax
from flaxformer.tasks import Batch

jitted = jax.jit(attention_statistics)


def statistics(logits, allowed, valid=None, weights=None):
    """Return the statistics of two layers with these logits [B, N, T, S]."""
    x = jnp.zeros((B, logits[0].shape[-2], 1))
    blocks = []
    for z in logits:
        mask = None if allowed is None else jnp.broadcast_to(allowed, z.shape)
        a = masked_softmax(z, mask) if weights is None else weights
        blocks.append(
            BlockIntermediates(attention=BranchActivations(x, x, x, {"logits": z, "allowed": allowed, "weights": a}))
        )
    kept = Intermediates(embedded=x, blocks=tuple(blocks), final=x)
    batch = Batch(inputs=x, targets=x, weights=jnp.ones(B), valid=valid)
    (place, found), *others = jitted(kept, batch).items()
    assert (place, others) == ("blocks/attention", [])
    return jax.device_get(found)


def random_logits(seed=0, heads=3):
    return tuple(jnp.asarray(x, jnp.float32) for x in np.random.default_rng(seed).normal(0, 2, (2, B, heads, T, S)))


def loops(logits, allowed, valid):
    """Return entropy, largest logit and variance [L, N], and diversity [L], computed query by query."""
    found = {"entropy": [], "largest_logit": [], "logit_variance": [], "head_diversity": []}
    for z in np.asarray(logits, np.float64):
        allowed = np.broadcast_to(allowed, z.shape)
        rows, entropy, pairs = {}, [], []
        for n in range(z.shape[1]):
            entropies, seen = [], []
            for b, t in np.ndindex(B, T):
                own = z[b, n, t][allowed[b, n, t]]
                if not valid[b, t] or not own.size:
                    continue
                weights = np.exp(own - own.max()) / np.exp(own - own.max()).sum()
                entropies.append(-sum(w * np.log(w) for w in weights if w > 0))
                seen.extend(own)
                rows[b, n, t] = np.zeros(z.shape[-1])
                rows[b, n, t][allowed[b, n, t]] = weights
            entropy.append(np.mean(entropies))
            pairs.append(seen)
        cosines = [
            rows[b, n, t] @ rows[b, m, t] / np.sqrt(rows[b, n, t] @ rows[b, n, t] * (rows[b, m, t] @ rows[b, m, t]))
            for b, n, t in rows
            for m in range(n)
            if all((b, head, t) in rows for head in range(z.shape[1]))
        ]
        found["entropy"].append(entropy)
        found["largest_logit"].append([np.abs(seen).max() for seen in pairs])
        found["logit_variance"].append([np.var(seen) for seen in pairs])
        found["head_diversity"].append(1 - np.mean(cosines))
    return found


def test_statistics_equal_a_loop_over_real_queries_and_allowed_pairs():
    """Some queries are padding, one has no key, one has no key in one head, and one weight underflows."""
    logits = random_logits()
    logits = (logits[0].at[1, 2, 3, 0].set(-1e3), logits[1])
    allowed = (np.arange(S) <= np.arange(T)[:, None]) & (np.arange(T) != 5)[:, None]
    allowed = jnp.asarray(np.broadcast_to(allowed, (B, 3, T, S))).at[1, :, :, 4].set(False).at[0, 2, 1].set(False)
    valid = jnp.asarray(np.arange(T) < np.array(LENGTHS)[:, None])
    found, expected = statistics(logits, allowed, valid), loops(logits, allowed, valid)
    for name, numbers in expected.items():
        np.testing.assert_allclose(getattr(found, name), numbers, rtol=2e-5, err_msg=name)
    assert found.largest_logit[0, 2] == 1000


def test_nan_at_padding_and_forbidden_pairs_has_no_effect():
    logits, valid = random_logits(), jnp.asarray(np.arange(T) < np.array(LENGTHS)[:, None])
    allowed = jnp.asarray(np.arange(S) <= np.arange(T)[:, None])
    with_nan = tuple(jnp.where(allowed[None, None] & valid[:, None, :, None], z, jnp.nan) for z in logits)
    jax.tree.map(
        np.testing.assert_array_equal, statistics(with_nan, allowed, valid), statistics(logits, allowed, valid)
    )


def test_head_diversity_is_0_for_equal_heads_and_1_for_disjoint_heads():
    same = tuple(jnp.broadcast_to(z[:, :1], z.shape) for z in random_logits())
    np.testing.assert_allclose(statistics(same, None).head_diversity, 0, atol=1e-6)
    apart = jnp.broadcast_to(jnp.eye(3, S)[None, :, None], (B, 3, T, S))
    found = statistics(random_logits(), None, weights=apart)
    np.testing.assert_array_equal(found.head_diversity, 1)
    np.testing.assert_array_equal(found.entropy, 0)
    np.testing.assert_array_equal(statistics(random_logits(heads=1), None).head_diversity, 0)


def test_statistics_are_0_if_every_pair_is_masked():
    found = statistics(random_logits(), jnp.zeros((B, 1, T, S), bool))
    assert all(not np.any(x) for x in jax.tree.leaves(found))


@pytest.mark.every(2, "long")
@pytest.mark.parametrize(
    "changes",
    [
        {"positions": Alibi(), "attention.window": 3},
        {"attention.logit_cap": 2.0, "attention.scale_exponent": 0.0},
        {"attention.frozen_pattern": 8},
    ],
    ids=["bias and window", "cap", "frozen"],
)
def test_attention_returns_its_logits_before_masking_and_its_mask(changes):
    run = run_of(replace_at(BASE, {"layers": 1} | changes))
    config, params, batch = run.model, state_of(run).params, batch_of(run)
    kept = jax.jit(apply_with_intermediates)(params, config, batch.inputs, valid=batch.valid)[1]
    branch, own = kept.blocks[0].attention, params.blocks[0].attention
    t, s = np.mgrid[:T, :T]
    window = changes.get("attention.window", T)
    places = np.maximum(np.cumsum(np.asarray(batch.valid), axis=1) - 1, 0)  # distances count real tokens
    distance = places[:, None, :, None] - places[:, None, None, :]
    allowed = (s <= t) & (distance < window) & np.asarray(batch.valid)[:, None, None, :]
    np.testing.assert_array_equal(branch.allowed, allowed)
    if own.query is None:
        wanted = np.stack([np.asarray(own.pattern)[:, place[:, None], place] for place in places])
    else:
        x = np.asarray(branch.input, np.float64)
        query, key = (np.einsum("btd,dnh->bnth", x, np.float64(w)) for w in (own.query, own.key))
        key = key * np.asarray(batch.valid)[:, None, :, None]
        wanted = np.einsum("bnth,bnsh->bnts", query, key) * 3.0**-config.attention.scale_exponent
        if "positions" in changes:
            wanted = wanted - 2.0 ** (-8 * np.arange(1, 3)[:, None, None] / 2) * np.abs(distance)
        if "attention.logit_cap" in changes:
            wanted = 2 * np.tanh(wanted / 2)
    np.testing.assert_allclose(branch.logits, wanted, rtol=1e-4, atol=1e-5)
    mask = jnp.broadcast_to(branch.allowed, branch.logits.shape)
    np.testing.assert_allclose(masked_softmax(branch.logits, mask), branch.weights, rtol=1e-6)


def test_returning_intermediates_adds_no_matrix_product():
    """Each block has six products with weights and two in its attention; the head has one."""
    config, params, tokens = BASE, state_of(run_of(BASE)).params, jnp.zeros((B, T), int)
    traced = str(jax.make_jaxpr(apply)(params, config, tokens))
    assert traced.count("dot_general") == 8 * 2 + 1
    kept = str(jax.make_jaxpr(apply_with_intermediates)(params, config, tokens))
    assert kept.count("dot_general") == 8 * 2 + 1
