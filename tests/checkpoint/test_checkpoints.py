"""Checkpoints: bitwise restoring in both layouts, the steps that are kept, and messages about mismatches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from states import bits, numbers

from flaxformer.checkpoint import Checkpoints, storage
from flaxformer.checkpoint.host_arrays import copy_to_host
from flaxformer.checkpoint.leaves import describe_leaves, digest
from flaxformer.components import Attention, Dense, Gated
from flaxformer.config import Block, ModelConfig
from flaxformer.model import init
from flaxformer.model.layout import Periods
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError

MODEL = ModelConfig(vocabulary=7, layers=3, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=5))
DIFFERENT = Block(attention=Attention(heads=3), feed_forward=Gated(d_ff=4))
MODELS = {
    "alike": MODEL.with_encoder(),
    "differing": MODEL.with_encoder().replace(layers=6, pattern=(Block(), DIFFERENT, Block(feed_forward=None))),
}
LAYOUTS = ("unrolled", "scanned")


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves some steps with their losses and returns the checkpoints."""

    def save(losses, **how):
        kept = Checkpoints(tmp_path, **how)
        for step, loss in losses.items():
            kept.save(step, numbers(step, 2), {"validation_loss": loss})
        kept.wait()
        return kept

    return save


def test_restored_state_is_bitwise_equal(saved):
    kept = saved({3: 0.5, 7: 0.25})
    for wanted, step in ((7, None), (3, 3)):
        found, state = kept.restore(numbers(0, 2), step)
        assert found == wanted
        assert bits(state) == bits(numbers(wanted, 2))
    assert kept.metrics(3) == {"validation_loss": 0.5}


def test_restored_state_has_the_devices_and_leaves_of_the_template(saved):
    like = jax.eval_shape(lambda: {name: value for name, value in numbers(0, 2).items() if name != "host"})
    device = jax.devices()[1]
    like["half"] = jax.device_put(numbers(0, 2)["half"], device)
    kept = saved({3: 0.5})
    _, state = kept.restore(like, partial=True)
    assert jax.random.key_impl(state["key"]) == "threefry2x32"
    assert state["half"].devices() == {device}
    assert not kept.restore(numbers(0, 2))[1]["step"].committed
    assert bits(state) == bits({name: value for name, value in numbers(3, 2).items() if name != "host"})


def test_later_changes_of_a_state_are_not_saved(tmp_path):
    kept, mine, donated = Checkpoints(tmp_path), np.arange(5.0), jnp.arange(100_003.0)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    kept.save(1, {"mine": mine, "donated": donated})
    mine += 1
    add(donated).block_until_ready()
    _, state = kept.restore({"mine": mine, "donated": jax.ShapeDtypeStruct((100_003,), jnp.float32)})
    np.testing.assert_array_equal(state["mine"], np.arange(5.0))
    np.testing.assert_array_equal(state["donated"], np.arange(100_003.0))


def test_state_is_restored_with_another_sharding(tmp_path):
    values = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, columns = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), (None, "data")))
    kept = Checkpoints(tmp_path)
    kept.save(1, {"x": jax.device_put(values, rows)})
    for sharding in (columns, rows, jax.sharding.SingleDeviceSharding(jax.devices()[1])):
        _, state = kept.restore({"x": jax.ShapeDtypeStruct((4, 6), jnp.float32, sharding=sharding)})
        assert state["x"].sharding == sharding
        np.testing.assert_array_equal(state["x"], values)


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def states(request):
    """Weights (also of an encoder) and moments, equal in both layouts."""
    draw = np.random.default_rng(3)
    shapes = jax.eval_shape(lambda: init(jax.random.key(0), request.param))
    trees = [jax.tree.map(lambda x: draw.normal(size=x.shape).astype(x.dtype), shapes) for _ in range(3)]
    count = optax.scale_by_adam().init(jnp.zeros(2)).count

    def state(layout):
        params, mu, nu = (jax.tree.map(jnp.asarray, with_layout(tree, layout)) for tree in trees)
        return {"params": params, "optimizer": (optax.ScaleByAdamState(count, mu, nu), optax.EmptyState())}

    return {layout: state(layout) for layout in LAYOUTS}


@pytest.mark.every(2, "long")
@pytest.mark.every(2)
@pytest.mark.parametrize("writer", LAYOUTS)
def test_each_layout_reads_checkpoints_of_the_other(states, tmp_path, writer):
    kept = Checkpoints(tmp_path)
    kept.save(1, states[writer])
    for state in states.values():
        assert bits(kept.restore(jax.eval_shape(lambda x=state: x))[1]) == bits(state)


def test_names_on_disk_are_per_layer_in_both_layouts(states):
    unrolled, scanned = (describe_leaves(states[layout]) for layout in LAYOUTS)
    assert unrolled == scanned
    assert unrolled["params/encoder/blocks/2/attention/query"].shape == (6, 2, 3)
    assert "optimizer/0/mu/blocks/0/attention/query" in unrolled
    assert isinstance(states["unrolled"]["params"].blocks, tuple)
    assert not isinstance(states["scanned"]["params"].blocks, tuple)


def test_differing_layers_are_stored_by_their_index(tmp_path):
    params = init(jax.random.key(0), MODELS["differing"], "scanned")
    found = describe_leaves({"params": params})
    queries = [found[f"params/blocks/{layer}/attention/query"].shape for layer in range(6)]
    assert queries == [(6, 2, 3), (6, 3, 2), (6, 2, 3)] * 2
    gates = [name.split("/")[2] for name in found if name.startswith("params/blocks") and name.endswith("gate")]
    assert gates == ["1", "4"]


def test_stack_without_a_common_leading_axis_is_stored_as_it_is(states, tmp_path):
    params = states["scanned"]["params"]
    factored = {"v_row": jax.tree.map(lambda x: jnp.ones(1) if x.ndim < 3 else x, params)}
    if not isinstance(params.blocks, Periods):
        assert "v_row/blocks/attention/query" in describe_leaves(factored)
    kept = Checkpoints(tmp_path)
    kept.save(1, factored)
    assert bits(kept.restore(factored)[1]) == bits(factored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s | {"half": jnp.zeros((7, 5), jnp.bfloat16)}, r"half \[5, 7\], the config has \[7, 5\]"),
        (lambda s: s | {"half": jnp.zeros((5, 7), jnp.float16)}, "half in bfloat16, the config has float16"),
        (lambda s: s | {"key": jax.random.key(0, impl="rbg")}, r"key \[2\], the config has \[4\]"),
        (lambda s: s | {"more": jnp.zeros(3)}, r"checkpoint has no more, the config has \[3\]"),
        (lambda s: {k: v for k, v in s.items() if k != "half"}, r"checkpoint has half \[5, 7\], the config has none"),
    ],
)
def test_mismatched_structure_raises_an_error_that_names_the_first_differing_leaf(saved, change, message):
    kept = saved({1: 0.5, 2: 0.5})
    with pytest.raises(UserError, match=message):
        kept.restore(change(numbers(0, 2)))
    assert kept.steps() == [1, 2]  # the step is undamaged and stays


def test_mismatched_model_raises_an_error_that_names_the_weight(states, tmp_path):
    kept = Checkpoints(tmp_path)
    kept.save(1, states["scanned"])
    state = states["unrolled"]
    like = state | {"params": state["params"].replace(encoder=None)}
    with pytest.raises(
        UserError, match=r"checkpoint has params/encoder/embedding/tokens \[7, 6\], the config has none"
    ):
        kept.restore(like)


def test_structure_is_compared_before_arrays_are_read(saved, monkeypatch):
    kept = saved({1: 0.5})
    monkeypatch.setattr(storage, "read", lambda *_: pytest.fail("read"))
    with pytest.raises(UserError, match="the config has"):
        kept.restore(numbers(0, 3))


LOSSES = {1: 0.7, 2: 0.3, 3: 0.5, 4: float("nan"), 5: 0.9}


@pytest.mark.parametrize(
    ("how", "steps", "best"),
    [
        ({"keep_last": 1, "keep_best": 0}, [5], 5),
        ({"keep_last": 2, "keep_best": 1}, [2, 4, 5], 2),
        ({"keep_last": 1, "keep_best": 2}, [2, 3, 5], 2),
        ({"keep_last": 1, "keep_best": 3, "lower_is_better": False}, [1, 3, 5], 5),
        ({"keep_last": 2, "keep_best": 1, "metric": "absent"}, [4, 5], None),
    ],
)
def test_newest_and_best_steps_are_kept(saved, how, steps, best):
    kept = saved(LOSSES, **how)
    assert (kept.steps(), kept.best()) == (steps, best)
    # Read from the disk; a metric that is not finite is None.
    assert Checkpoints(kept.folder).steps() == steps
    assert all(kept.metrics(step)["validation_loss"] == (None if step == 4 else LOSSES[step]) for step in steps)


def test_saving_a_step_again_needs_the_same_state_and_earlier_steps_are_refused(saved):
    kept = saved({3: 0.5, 7: 0.5})
    kept.save(7, numbers(7, 2))
    kept.wait()
    kept.save(7, numbers(8, 2))
    with pytest.raises(UserError, match=r"step 7 was not saved in .*: the step exists with another state"):
        kept.wait()
    with pytest.raises(UserError, match="holds step 7; expected a step from there on, not 5"):
        kept.save(5, numbers(5, 2))
    assert bits(kept.restore(numbers(0, 2))[1]) == bits(numbers(7, 2))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda kept: kept.restore({}, 4), "holds no step 4; it holds: 3"),
        (lambda kept: kept.metrics(4), "holds no step 4"),
        (lambda kept: Checkpoints(kept.folder / "absent").restore({}), "holds no checkpoint that can be read"),
        (lambda kept: Checkpoints(kept.folder, keep_last=0), "keep_last is 0"),
    ],
)
def test_misuse_raises_a_user_error(saved, ask, message):
    with pytest.raises(UserError, match=message):
        ask(saved({3: 0.5}))


def test_step_must_be_an_integer_of_at_least_0(tmp_path):
    kept = Checkpoints(tmp_path / "inner")
    with pytest.raises(ValueError, match="step is -1"):
        kept.save(-1, {})
    with pytest.raises(TypeError):
        kept.save("../../7", {})
    assert not (tmp_path / "inner").exists()


def test_two_leaves_with_one_name_are_refused():
    with pytest.raises(ValueError, match="two leaves are named a/b"):
        describe_leaves({"a": {"b": 1.0}, "a/b": 2.0})


def test_digest_depends_on_the_bytes_of_an_array():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest(array) == digest(array.tobytes())
    assert digest(array) != digest(np.ascontiguousarray(array.T))
    assert digest(array.T) == digest(np.ascontiguousarray(array.T))
    assert len({digest(x) for x in copy_to_host(numbers(5, 2)).values()}) == len(numbers(5, 2)) + 1
