"""Summaries are flat and complete, named by quantity and place, and can be stored as a table."""

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from cases import MODELS, batch_of, run_of, state_of

from flaxformer.diagnostics import diagnose, summary


@pytest.fixture(scope="module")
def found():
    """Diagnostics with a different number in every entry."""
    run, dice = run_of(MODELS["encoder-decoder"].replace(layers=3)), np.random.default_rng(0)
    shapes = jax.eval_shape(diagnose, state_of(run), run, batch_of(run))
    return jax.tree.map(lambda x: jnp.asarray(dice.uniform(size=x.shape), jnp.float32), shapes)


def test_every_number_has_its_own_row(found):
    rows = summary(found)
    assert len(rows) == sum(x.size for x in jax.tree.leaves(found))
    assert all(np.shape(x) == () for x in rows.values())
    assert rows["loss"] == found.loss
    assert rows["gradient_norm/blocks/2"] == found.gradient_norm["blocks"][2]
    assert rows["update_norm/blocks/1/cross_attention/key"] == found.update_norm["blocks/cross_attention/key"][1]
    assert (
        rows["parameter_norm/encoder/blocks/0/feed_forward"] == found.parameter_norm["encoder/blocks/feed_forward"][0]
    )
    assert rows["rms/blocks/0/attention/update"] == found.rms["blocks/attention/update"][0]
    assert rows["rms/encoder/final"] == found.rms["encoder/final"]
    entropy = found.attention["encoder/blocks/attention"].entropy
    assert entropy.shape == (1, 5)
    assert rows["attention_entropy/encoder/blocks/0/attention/head/4"] == entropy[0, 4]
    cross = found.attention["blocks/cross_attention"]
    assert rows["largest_logit/blocks/1/cross_attention/head/0"] == cross.largest_logit[1, 0]
    assert rows["logit_variance/blocks/0/cross_attention/head/1"] == cross.logit_variance[0, 1]
    assert rows["head_diversity/blocks/1/cross_attention"] == cross.head_diversity[1]


def test_coarse_summary_has_minimum_mean_and_maximum_over_layers_and_heads(found):
    rows = summary(found, coarse=True)
    assert len(rows) < 130
    for end, over in (("min", np.min), ("mean", np.mean), ("max", np.max)):
        np.testing.assert_allclose(rows[f"gradient_norm/blocks/{end}"], over(found.gradient_norm["blocks"]), rtol=1e-6)
        entropy = found.attention["blocks/attention"].entropy
        assert entropy.shape == (3, 2)
        np.testing.assert_allclose(rows[f"attention_entropy/blocks/attention/{end}"], over(entropy), rtol=1e-6)
    assert rows["update_norm/head"] == found.update_norm["head"]
    assert {name for name in rows if name.startswith("parameter_norm/encoder")} == {
        *(f"parameter_norm/encoder/blocks/{end}" for end in ("min", "mean", "max")),
        *(f"parameter_norm/encoder/{module}" for module in ("embedding", "final_norm")),
    }


@pytest.mark.parametrize("coarse", [False, True])
def test_summary_is_equal_when_jitted_and_can_be_written_to_parquet(found, coarse, tmp_path):
    rows = {name: float(x) for name, x in summary(jax.device_get(found), coarse).items()}
    traced = jax.jit(summary, static_argnums=1)(found, coarse)
    assert rows.keys() == traced.keys()
    for name, x in rows.items():
        np.testing.assert_allclose(traced[name], x, rtol=1e-6)
    pl.DataFrame([rows]).write_parquet(tmp_path / "rows.parquet")
    assert pl.read_parquet(tmp_path / "rows.parquet").to_dicts() == [rows]
